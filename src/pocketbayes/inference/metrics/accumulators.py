"""Streaming measures: `update` with each batch, `merge` shards, `compute` at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pocketbayes.base.errors import NotFiniteAnswersError, UserError
from pocketbayes.inference.metrics import calibration
from pocketbayes.inference.metrics.calibration import Reliability

SMALLEST_PROBABILITY = torch.finfo(torch.float32).tiny
"""Lower bound of probabilities before their logarithm is taken."""
_TWO_SIDED_95 = 1.959963984540054


class Sums:
    """Named sums over examples, in float64 on the CPU, merged by addition."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def _add(self, **terms: Tensor) -> None:
        for name, term in terms.items():
            value = term.detach().double().cpu()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def merge(self, other: Sums) -> None:
        """Merge another accumulator of the same kind."""
        mine, theirs = ({name: s.shape for name, s in sums.sums.items()} for sums in (self, other))
        if type(other) is not type(self) or any(mine[name] != theirs[name] for name in mine.keys() & theirs.keys()):
            raise UserError(f"cannot merge {type(other).__name__} into {type(self).__name__}: classes or bins differ")
        self._add(**other.sums)

    def _mean(self, name: str, count: str = "count") -> float:
        return float(self.sums[name] / self.sums[count])

    def _require_examples(self) -> None:
        if not self.sums or self.sums["count"] == 0:
            raise UserError(f"{type(self).__name__} has seen no examples: call update before compute")


class Classification(Sums):
    """Accuracy, likelihood and calibration of class probabilities.

    Probabilities (n, classes, h, w) with labels (n, h, w) count every pixel as an example.

    Args:
        classes: number of classes.
        bins: bins of the three calibration errors.
        ignore_index: label of examples (pixels) to ignore.
    """

    def __init__(self, classes: int, bins: int = 15, ignore_index: int | None = None) -> None:
        super().__init__()
        self.classes, self.bins, self.ignore_index = classes, bins, ignore_index

    def update(
        self, probs: Tensor, labels: Tensor, epistemic: Tensor | None = None, aleatoric: Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            probs: (n, classes, ...) probabilities, not logits.
            labels: (n, ...) integer labels.
            epistemic: (n, ...) mutual information in nats, if known.
            aleatoric: (n, ...) expected entropy in nats, if known.
        """
        if probs.ndim < 2 or probs.shape[1] != self.classes or labels.shape != probs.shape[:1] + probs.shape[2:]:
            raise UserError(
                f"expected probs (n, {self.classes}, ...) and labels (n, ...), got {tuple(probs.shape)} "
                f"and {tuple(labels.shape)}"
            )
        p = probs.detach().double().movedim(1, -1).reshape(-1, self.classes)
        y = labels.reshape(-1).long()
        keep = torch.ones_like(y, dtype=torch.bool) if self.ignore_index is None else y != self.ignore_index
        p, y = p[keep], y[keep]
        self._check(p, y)

        confidence, answer = p.max(1)
        correct = answer == y
        one_hot = torch.nn.functional.one_hot(y, self.classes)
        class_cells = calibration.equal_width_cells(p, self.bins)
        class_cells = class_cells + self.bins * torch.arange(self.classes, device=p.device)
        self._add(
            count=torch.tensor(len(y)),
            correct=correct.sum(),
            nll=-p.gather(1, y[:, None]).clamp(min=SMALLEST_PROBABILITY).log().sum(),
            brier=(p - one_hot).square().sum(),
            entropy=torch.special.entr(p).sum(),
            equal_width=calibration.table(
                calibration.equal_width_cells(confidence, self.bins), confidence, correct, self.bins
            ),
            fine=calibration.table(calibration.fine_cells(confidence), confidence, correct, calibration.FINE_CELLS),
            classwise=calibration.table(
                class_cells.flatten(), p.flatten(), one_hot.flatten(), self.classes * self.bins
            ).view(self.classes, self.bins, 3),
        )
        if self.classes > 5:
            self._add(top5=(p.topk(5, dim=1).indices == y[:, None]).sum())
        for name, given in (("epistemic", epistemic), ("aleatoric", aleatoric)):
            if given is not None:
                self._add(**{name: given.detach().double().reshape(-1)[keep].sum(), f"{name}_count": keep.sum()})

    def _check(self, p: Tensor, y: Tensor) -> None:
        if not len(y):
            return
        if not bool(p.sum().isfinite()):
            raise NotFiniteAnswersError("the network's outputs are not finite: its weights or its inputs are too large")
        if not bool(((p >= 0).all() & ((p.sum(1) - 1).abs() < 1e-2).all()).item()):
            raise UserError("probs must be non-negative and sum to 1 over classes (dim 1): were logits given?")
        if bool(((y < 0) | (y >= self.classes)).any()):
            raise UserError(
                f"labels must lie in 0..{self.classes - 1}, found {int(y.min())}..{int(y.max())} "
                f"(ignore_index is {self.ignore_index})"
            )

    def compute(self) -> dict[str, float]:
        """Return the measures so far.

        `accuracy`, `top5` (with more than five classes), `nll` (mean of `-log p[label]`, with p at least the smallest
        normal float32, 1.2e-38, so that an underflow costs 87.3 nats, not infinity), `brier` (squared error summed over
        classes, 0 to 2), `entropy`, `epistemic` and `aleatoric` (means, where given), and three calibration errors:
        `ece` over bins of equal width, `ece_adaptive` over bins of equal mass (on a grid of 1/512 in logit),
        `ece_classwise`, the mean over classes of the error of that class's probability (Kull et al. 2019).
        """
        self._require_examples()
        measures = {
            "count": float(self.sums["count"]),
            "accuracy": self._mean("correct"),
            "nll": self._mean("nll"),
            "brier": self._mean("brier"),
            "ece": float(calibration.calibration_error(self.sums["equal_width"])),
            "ece_adaptive": calibration.adaptive_error(self.sums["fine"], self.bins),
            "ece_classwise": float(calibration.calibration_error(self.sums["classwise"]).mean()),
            "entropy": self._mean("entropy"),
        }
        if "top5" in self.sums:
            measures["top5"] = self._mean("top5")
        for name in ("epistemic", "aleatoric"):
            if name in self.sums:
                measures[name] = self._mean(name, f"{name}_count")
        return measures

    def reliability(self) -> Reliability:
        """Return the reliability diagram so far."""
        self._require_examples()
        return calibration.reliability(self.sums["equal_width"])


class Segmentation(Sums):
    """IoU from the confusion matrix of predicted and true labels.

    Args:
        classes: number of classes.
        ignore_index: label of pixels to ignore.
    """

    def __init__(self, classes: int, ignore_index: int | None = None) -> None:
        super().__init__()
        self.classes, self.ignore_index = classes, ignore_index

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        """Add a batch of predicted and true labels, integers of one shape."""
        if predicted.shape != labels.shape or predicted.is_floating_point():
            raise UserError(
                f"Segmentation takes predicted labels of the labels' shape {tuple(labels.shape)}, got "
                f"{predicted.dtype} {tuple(predicted.shape)}: give probs.argmax(1)"
            )
        predicted, labels = predicted.reshape(-1).long(), labels.reshape(-1).long()
        if self.ignore_index is not None:
            keep = labels != self.ignore_index
            predicted, labels = predicted[keep], labels[keep]
        both = torch.stack([predicted, labels])
        if bool(((both < 0) | (both >= self.classes)).any()):
            raise UserError(
                f"labels must lie in 0..{self.classes - 1}, found {int(both.min())}..{int(both.max())} "
                f"(ignore_index is {self.ignore_index})"
            )
        pairs = torch.bincount(labels * self.classes + predicted, minlength=self.classes**2)
        self._add(count=torch.tensor(len(labels)), confusion=pairs.view(self.classes, self.classes))

    @property
    def confusion(self) -> Tensor:
        """The confusion matrix: counts of (true class, predicted class)."""
        self._require_examples()
        return self.sums["confusion"].long()

    def compute(self) -> dict[str, float]:
        """Return `pixel_accuracy`, `iou_<class>` = `tp / (tp + fp + fn)`, and `miou`, their mean.

        A class that is neither present nor predicted has no IoU and is omitted from the keys and the mean.
        """
        confusion = self.confusion.double()
        hits = confusion.diag()
        union = confusion.sum(0) + confusion.sum(1) - hits
        iou = {f"iou_{k}": float(hits[k] / union[k]) for k in range(self.classes) if union[k] > 0}
        return {
            "count": float(self.sums["count"]),
            "pixel_accuracy": float(hits.sum() / confusion.sum()),
            "miou": sum(iou.values()) / len(iou),
            **iou,
        }


class Regression(Sums):
    """Errors and likelihood of a Gaussian prediction, in the units of the original target.

    Args:
        scale: the divisor of the standardised targets, one number or one per output.
    """

    def __init__(self, scale: float | Sequence[float] | Tensor = 1.0) -> None:
        super().__init__()
        self.scale = torch.as_tensor(scale, dtype=torch.float64)

    def update(self, mean: Tensor, std: Tensor, target: Tensor, log_likelihood: Tensor | None = None) -> None:
        """Add a standardised batch.

        Args:
            mean: predictive mean; its last dimension is the outputs' if `scale` is one per output.
            std: predictive standard deviation, noise included, the same shape.
            target: the same shape.
            log_likelihood: log density of the target under the whole predictive (the log-mean-exp over weight samples),
                the same shape, if it is known beyond the Gaussian.
        """
        if not mean.shape == std.shape == target.shape:
            shapes = ", ".join(str(tuple(t.shape)) for t in (mean, std, target))
            raise UserError(f"mean, std and target must have one shape, got {shapes}")
        if not bool((std > 0).all()):
            raise UserError("std must be positive everywhere: include the noise of the observations")
        scale = self.scale.to(mean.device)
        error = (target.detach().double() - mean.detach().double()) * scale
        spread = std.detach().double() * scale
        density = -0.5 * (error / spread).square() - spread.log() - 0.5 * math.log(2 * math.pi)
        self._add(
            count=torch.tensor(error.numel()),
            squared=error.square().sum(),
            absolute=error.abs().sum(),
            log_likelihood=density.sum(),
            covered=(error.abs() <= _TWO_SIDED_95 * spread).sum(),
        )
        if log_likelihood is not None:
            if log_likelihood.shape != mean.shape:
                raise UserError(
                    f"log_likelihood has shape {tuple(log_likelihood.shape)} but mean has {tuple(mean.shape)}"
                )
            exact = log_likelihood.detach().double() - scale.log()
            self._add(log_likelihood_samples=exact.sum(), samples_count=torch.tensor(exact.numel()))

    def compute(self) -> dict[str, float]:
        """Return the measures so far, averaged over all target values.

        `rmse`, `mae`, `log_likelihood` (mean log density under the Gaussian), `coverage95` (fraction of targets inside
        mean +- 1.96 std), and `log_likelihood_samples` (mean of the given log densities, where given).
        """
        self._require_examples()
        measures = {
            "count": float(self.sums["count"]),
            "rmse": self._mean("squared") ** 0.5,
            "mae": self._mean("absolute"),
            "log_likelihood": self._mean("log_likelihood"),
            "coverage95": self._mean("covered"),
        }
        if "log_likelihood_samples" in self.sums:
            measures["log_likelihood_samples"] = self._mean("log_likelihood_samples", "samples_count")
        return measures


class HumanAgreement(Sums):
    """The distance of predicted probabilities from the fractions of people who chose each class."""

    def update(self, probs: Tensor, humans: Tensor) -> None:
        """Add a batch.

        Args:
            probs: (n, classes) predicted probabilities.
            humans: (n, classes) fractions of people, or numbers of them.
        """
        if probs.shape != humans.shape or probs.ndim != 2:
            raise UserError(
                f"predictions {tuple(probs.shape)} and human labels {tuple(humans.shape)} must both be (n, classes)"
            )
        p, h = probs.detach().double(), humans.detach().to(probs.device).double()
        votes = h.sum(1, keepdim=True)
        if not bool(((h >= 0).all() & (votes > 0).all() & votes.isfinite().all()).item()):
            raise UserError("human labels must not be negative, nor all 0 for an image")
        h = h / votes
        self._add(
            count=torch.tensor(len(p)),
            cross_entropy=-(h * p.clamp(min=SMALLEST_PROBABILITY).log()).sum(),
            total_variation=0.5 * (h - p).abs().sum(),
            human_entropy=torch.special.entr(h).sum(),
        )

    def compute(self) -> dict[str, float]:
        """Return means over images.

        `cross_entropy` (`-sum_c h_c log p_c` in nats), `total_variation` (`sum_c |h_c - p_c| / 2`, 0 to 1), and
        `human_entropy`, the cross entropy of the human labels themselves, which is the minimum.
        """
        self._require_examples()
        names = ("cross_entropy", "total_variation", "human_entropy")
        return {"count": float(self.sums["count"]), **{name: self._mean(name) for name in names}}
