"""Likelihoods and the weight of the KL: training minimises NLL + beta KL / N and reports both terms separately."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.base.naming import naming_arguments
from pocketbayes.base.registry import Registry
from pocketbayes.data.batches import Source, batches
from pocketbayes.data.dataset import Info
from pocketbayes.posteriors.coding import Described
from pocketbayes.posteriors.gaussian import Correlated, Gaussian
from pocketbayes.propagation.base import check_output

GaussianLoss = Literal["cross-entropy", "gaussian-nll"]
"""The loss of a Gaussian output: `-E log p(y | output)`, the expected NLL of the ELBO, or `-log N(y)`, the density of
the target under the predicted Gaussian."""

VARIANCE_FLOOR = 1e-2
"""Variance that "gaussian-nll" adds to probabilities: the density of a noiseless one-hot label is unbounded."""


Task = Literal["classification", "regression", "other"]

LIKELIHOODS: Registry[type[Likelihood]] = Registry("likelihood")
"""Every likelihood by name; subclasses of `Likelihood` with a `name` are registered when they are defined."""


class Likelihood(Described, ABC):
    """p(y | output): the noise model of the data.

    A subclass must define `nll`. One without a `name` is saved under the name of its nearest named parent.

    Attributes:
        name: The name in files; by default the name of the class.
        task: The meaning of outputs: logits of classes, real numbers with Gaussian noise, or anything else.
        ignore_index: A label that does not count, if any.
        gaussian_loss: The loss of Gaussian outputs, as moment propagation returns them.
    """

    name: ClassVar[str]
    task: ClassVar[Task] = "other"
    ignore_index: int | None = None
    gaussian_loss: GaussianLoss = "cross-entropy"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "name"):
            cls.name = cls.__name__
        if "name" in vars(cls):
            LIKELIHOODS.join(cls.name, cls)

    @abstractmethod
    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Compute -log p(target | output) in nats, the mean over the batch."""

    def log_density(self, output: Tensor, target: Tensor) -> Tensor:
        """Return log p(target | output) per example, (n,); override it if calling `nll` example by example is slow."""
        pairs = zip(output.split(1), target.split(1))
        return torch.stack([-self.nll(*pair) for pair in pairs])

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted target and the std of its noise; by default the output and 0."""
        return output, torch.zeros_like(output)

    def measures(self, mean: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return further measures per example, (n,) each, from predicted means; `evaluate` averages them."""
        return {}

    def outputs_for(self, targets: int) -> int:
        """Return the number of outputs for targets of this size."""
        return targets


class Categorical(Likelihood):
    """Softmax over classes, with one label per example (n, classes) or per pixel (n, classes, h, w).

    Args:
        class_weights: The weight of each class in the loss, (classes,); None for equal weights.
        ignore_index: A label that does not count, such as void pixels.
        gaussian_loss: The loss of Gaussian logits, as moment propagation returns them.
    """

    name = "categorical"
    task = "classification"

    @naming_arguments
    def __init__(
        self,
        class_weights: Tensor | Sequence[float] | None = None,
        ignore_index: int | None = None,
        gaussian_loss: GaussianLoss = "cross-entropy",
    ) -> None:
        super().__init__()
        self.class_weights: Tensor | None
        weights = None if class_weights is None else torch.as_tensor(class_weights)
        if weights is not None and not bool((weights.isfinite() & (weights >= 0)).all()):
            raise UserError("class_weights must be finite and not negative")
        self.register_buffer(
            "class_weights", weights if weights is None or weights.is_floating_point() else weights.float()
        )
        self.ignore_index = ignore_index
        check_choice("loss", gaussian_loss, get_args(GaussianLoss))
        self.gaussian_loss = gaussian_loss

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Compute the mean of `-log softmax(output)[target]` over labels that count, weighted by class.

        For Gaussian logits with variances v and softmax p of their means: `-log p[target] + sum_c p_c (1 - p_c) v_c /
        2`, the expectation to second order; or `-log N(one-hot label; p, J^2 v)` with the Jacobian J of softmax.
        """
        check_output(output)
        shape = output.shape
        if self.class_weights is not None and len(self.class_weights) != shape[1]:
            raise UserError(f"{len(self.class_weights)} class weights, but the model has {shape[1]} outputs")
        if target.is_floating_point() and target.shape != shape:
            raise UserError(
                f"targets of shape {tuple(target.shape)} are real numbers, but the likelihood needs classes: give "
                f"integers (y.long()), or probabilities of shape {tuple(shape)}"
            )
        if isinstance(output, Gaussian):
            return self._gaussian_nll(output, target)
        if target.is_floating_point():  # probabilities in place of labels, as mixup makes them
            return F.cross_entropy(output, target, weight=self.class_weights)
        ignore = -100 if self.ignore_index is None else self.ignore_index
        total = F.cross_entropy(output, target.long(), weight=self.class_weights, ignore_index=ignore, reduction="sum")
        return total / self._weights(target).sum().clamp(min=1e-12)  # without labels the loss is 0, not 0 / 0

    def _weights(self, target: Tensor) -> Tensor:
        """Return the weight of each label."""
        counted = target != (-100 if self.ignore_index is None else self.ignore_index)
        if self.class_weights is None:
            return counted
        return self.class_weights[torch.where(counted, target, 0)] * counted

    def _gaussian_nll(self, output: Gaussian, target: Tensor) -> Tensor:
        mean, var = output.loc, output.variance
        if target.is_floating_point():
            wanted, weights = target, torch.ones_like(mean[:, 0])
        else:
            weights = self._weights(target).to(mean.dtype)
            labels = torch.where(weights > 0, target, 0)
            if labels.device.type == "cpu" and int(labels.max()) >= mean.shape[1]:  # elsewhere the kernel checks
                raise IndexError(f"Target {int(labels.max())} is out of bounds.")
            wanted = F.one_hot(labels, mean.shape[1]).movedim(-1, 1).to(mean.dtype)
        log_probs = torch.log_softmax(mean, 1)
        probs = log_probs.exp()
        if isinstance(output, Correlated):
            each = self._correlated_nll(log_probs, output.covariance, wanted)
        elif self.gaussian_loss == "cross-entropy":
            each = -(wanted * log_probs).sum(1) + 0.5 * (probs * (1 - probs) * var).sum(1)
        else:
            squares = probs.square()
            spread = squares * ((1 - 2 * probs) * var + (squares * var).sum(1, keepdim=True)) + VARIANCE_FLOOR
            each = 0.5 * ((wanted - probs).square() / spread + (2 * math.pi * spread).log()).sum(1)
        return (each * weights).sum() / weights.sum().clamp(min=1e-12)

    def _correlated_nll(self, log_probs: Tensor, covariance: Tensor, wanted: Tensor) -> Tensor:
        """Compute the NLL of logits with covariance S.

        It adds `tr(J S) / 2`, or returns `-log N(label; p, J S J^T)`, with `J = diag(p) - p p^T`.
        """
        probs = log_probs.exp()
        jacobian = torch.diag_embed(probs) - probs.unsqueeze(2) * probs.unsqueeze(1)
        if self.gaussian_loss == "cross-entropy":
            return -(wanted * log_probs).sum(1) + 0.5 * (jacobian * covariance).sum((1, 2))
        floor = VARIANCE_FLOOR * torch.eye(probs.shape[1], dtype=probs.dtype, device=probs.device)
        root = torch.linalg.cholesky(jacobian @ covariance @ jacobian.mT + floor)
        score = torch.linalg.solve_triangular(root, (wanted - probs).unsqueeze(2), upper=False)
        size = 0.5 * math.log(2 * math.pi) * probs.shape[1]
        density: Tensor = 0.5 * score.square().sum((1, 2)) + root.diagonal(dim1=1, dim2=2).log().sum(1) + size
        return density


class GaussianNoise(Likelihood):
    """Regression with Gaussian noise: `y ~ N(output, noise^2)`.

    Args:
        noise: "learned" for one std, "predicted" for one that the network predicts for each input, or a given std. If
            it is predicted, the output's last axis holds the means, then as many raw values: noise = softplus(raw) +
            1e-6.
        raw: The learned raw noise, when a network is loaded.
        gaussian_loss: The loss of Gaussian outputs, as moment propagation returns them.
    """

    name = "gaussian"
    task = "regression"

    def __init__(
        self,
        noise: Literal["learned", "predicted"] | float = "learned",
        raw: Tensor | None = None,
        gaussian_loss: GaussianLoss = "cross-entropy",
    ) -> None:
        super().__init__()
        check_choice("loss", gaussian_loss, get_args(GaussianLoss))
        self.gaussian_loss = gaussian_loss
        if not (noise in ("learned", "predicted") or (isinstance(noise, (int, float)) and noise > 0)):
            raise UserError(f"noise must be 'learned', 'predicted' or a positive std, not {noise!r}")
        self.noise = noise
        if noise == "learned":
            self.raw = nn.Parameter(torch.tensor(math.log(math.expm1(0.5))) if raw is None else raw.clone())

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the noise std of every target."""
        if self.noise == "predicted":
            if output.ndim < 2 or output.shape[-1] % 2:
                raise UserError(
                    "noise='predicted' needs outputs (n, ..., 2 k), k means and then k noise values, "
                    f"not {tuple(output.shape)}"
                )
            mean, raw = output.chunk(2, dim=-1)
            return mean, F.softplus(raw) + 1e-6
        if self.noise == "learned":
            return output, (F.softplus(self.raw) + 1e-6).expand_as(output)
        return output, torch.full_like(output, float(self.noise))

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Compute `log(noise) + (y - mean)^2 / (2 noise^2) + log(2 pi) / 2`, summed over a target's entries.

        For Gaussian outputs with variance v, the expectation adds `v / (2 noise^2)`; "gaussian-nll" uses the variance
        `noise^2 + v` instead.
        """
        check_output(output)
        mean, noise = self.moments(output.loc if isinstance(output, Gaussian) else output)
        target = match_target(mean, target)
        square = (target - mean).square()
        if isinstance(output, Gaussian):
            var = output.variance[..., : mean.shape[-1]] if self.noise == "predicted" else output.variance
            if self.gaussian_loss == "cross-entropy":
                square = square + var
            else:
                noise = (noise.square() + var).sqrt()
        each = noise.log() + 0.5 * square / noise.square() + 0.5 * math.log(2 * math.pi)
        return each.sum() / len(mean)

    def outputs_for(self, targets: int) -> int:
        """Return the number of outputs, doubled if the network also predicts the noise."""
        return 2 * targets if self.noise == "predicted" else targets


def match_target(mean: Tensor, target: Tensor) -> Tensor:
    """Return the target in the mean's shape, since (n,) and (n, 1) would silently broadcast to (n, n)."""
    if [size for size in target.shape if size != 1] != [size for size in mean.shape if size != 1]:
        raise UserError(
            f"targets of shape {tuple(target.shape)} do not fit outputs of shape {tuple(mean.shape)}: floating-point "
            "targets mean regression; for classes give integers (y.long(), or y.argmax(1) for one-hot targets)"
        )
    return target.reshape(mean.shape)


def check_target(likelihood: Likelihood | None, shape: Sequence[int], target: Tensor) -> None:
    """Reject targets of another kind or shape than outputs (n, ...), and labels outside their classes."""
    task = task_of(likelihood)
    if task == "other":
        return
    if task == "regression":
        if not target.is_floating_point():
            raise UserError(
                f"the network predicts real numbers, but the targets are {target.dtype} labels: give floats (y.float())"
            )
        return
    if target.is_floating_point():
        raise UserError(
            f"the network predicts classes, but the targets are {target.dtype} numbers: give integers (y.long())"
        )
    wanted = (shape[0], *shape[2:])
    if tuple(target.shape) != wanted:
        raise UserError(
            f"labels of shape {tuple(target.shape)} do not fit outputs of shape {tuple(shape)}: give one label per "
            f"{'pixel' if len(shape) > 2 else 'example'}, {wanted}"
        )
    labels, ignored = target.long(), likelihood.ignore_index if likelihood else None
    wrong = (labels < 0) | (labels >= shape[1])
    if ignored is not None:
        wrong &= labels != ignored
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        where = place[0] if len(place) == 1 else tuple(place)
        raise UserError(
            f"labels do not fit the model's {shape[1]} outputs: label {int(labels[tuple(place)])} at position {where} "
            f"of a batch, but labels are 0 to {shape[1] - 1}"
        )


def restore(name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Likelihood:
    """Rebuild the likelihood that `name`, `config()` and the module's tensors describe."""
    kind = LIKELIHOODS[name]
    given = {**config, **{key: value for key, value in tensors.items() if key in inspect.signature(kind).parameters}}
    likelihood = kind(**given)
    likelihood.load_state_dict(dict(tensors))
    return likelihood


def task_of(likelihood: Likelihood | None) -> Task:
    """Return the task of a network's outputs; a network without a likelihood is a classifier."""
    return likelihood.task if likelihood else "classification"


def default_likelihood(source: Source, info: Info | None = None) -> Likelihood:
    """Return the default likelihood of data: learned Gaussian noise for regression, else categorical."""
    if info is None:
        _, y = next(batches(source, 1))
        return GaussianNoise("learned") if y.is_floating_point() else Categorical()
    return GaussianNoise("learned") if info.task == "regression" else Categorical(ignore_index=info.ignore_index)
