"""Predictions with uncertainty, prediction sets and intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import NormalDist

import torch
from torch import Tensor

from pocketbayes.base.calibration import Conformal, check_level
from pocketbayes.base.errors import UserError

SHOWN_ROWS = 8
SHARED = ("conformal", "class_names")
"""Fields that consecutive batches share."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions with uncertainty, printed as a short table.

    Classes: `probs` is the mean probability over the posterior (n, classes, ...); `entropy` its entropy, the total
    uncertainty in nats; `aleatoric` the expected entropy; `epistemic` their difference, the mutual information; `mean`
    and `std` the mean and std of the probabilities over the posterior.

    Regression: `mean` and `std` of the target; `epistemic` the std of the mean over the posterior, `aleatoric` the
    noise std, std^2 = epistemic^2 + aleatoric^2; `probs` is None; `entropy` that of the Gaussian.

    `passes` is the number of passes per input, `conformal` the result of `fit_conformal`, and `class_names` come from
    the data.
    """

    mean: Tensor
    std: Tensor
    entropy: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    probs: Tensor | None = None
    passes: Tensor | None = None
    conformal: Conformal | None = None
    class_names: tuple[str, ...] | None = None

    @staticmethod
    def cat(parts: list[Prediction]) -> Prediction:
        """Join the predictions of consecutive batches."""
        shared = {name: getattr(parts[0], name) for name in SHARED}
        columns = {
            f.name: [getattr(part, f.name) for part in parts] for f in fields(Prediction) if f.name not in SHARED
        }
        return Prediction(**{k: None if v[0] is None else torch.cat(v) for k, v in columns.items()}, **shared)  # type: ignore[arg-type]

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of intervals that contain the target with probability `level`.

        They are the mean plus and minus a multiple of the std: the Gaussian one, or after `fit_conformal` the conformal
        one, which covers `level` of new targets (jointly, if there are several) for any distribution.

        Raises:
            UserError: For classes; use `sets(level)`.
        """
        check_level(level)
        if self.probs is not None:
            raise UserError("interval(level) is for real numbers; for classes use sets(level)")
        width = NormalDist().inv_cdf((1 + level) / 2) if self.conformal is None else self.conformal.quantile(level)
        return self.mean - width * self.std, self.mean + width * self.std

    def sets(self, level: float = 0.9) -> Tensor:
        """Return a mask (n, classes, ...) of the sets that contain the true class with probability `level`.

        A set holds the most probable classes that together reach `level`; after `fit_conformal` it covers `level` of
        new labels even if the probabilities are not calibrated. The most probable class is always included.

        Raises:
            UserError: For real numbers; use `interval(level)`.
        """
        check_level(level)
        if self.probs is None:
            raise UserError("sets(level) is for classes; for real numbers use interval(level)")
        best = torch.zeros_like(self.probs, dtype=torch.bool).scatter_(1, self.probs.argmax(1, keepdim=True), True)
        if self.conformal is not None:
            least = 1 - self.conformal.quantile(level)
            return (self.probs >= least - 1e-7) | best  # tolerance for scores rounded in a file
        ordered, order = self.probs.sort(dim=1, descending=True)
        needed = ordered.cumsum(1) - ordered < level
        return torch.zeros_like(needed).scatter_(1, order, needed) | best

    def __len__(self) -> int:
        """Return the number of inputs."""
        return len(self.mean)

    def __repr__(self) -> str:
        """Show the first predictions as a table."""
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        left = len(self) - SHOWN_ROWS
        return "\n".join([self._title(), *lines, *([f"... and {left} more"] if left > 0 else [])])

    def _title(self) -> str:
        what = "real numbers" if self.probs is None else f"{self.probs.shape[1]} classes"
        unit = "" if self.probs is None else "; uncertainty in nats"
        per_pixel = ", means over pixels" if self.probs is not None and self.probs.ndim > 2 else ""
        return f"Prediction of {what} for {len(self)} inputs{per_pixel}{unit}"

    def _rows(self) -> list[tuple[str, ...]]:
        count = min(len(self), SHOWN_ROWS)
        if self.probs is None:
            head: tuple[str, ...] = ("input", "mean", "std", "epistemic", "aleatoric")
            columns = [_numbers(getattr(self, name)[:count]) for name in head[1:]]
            return [head, *((str(number), *cells) for number, cells in enumerate(zip(*columns)))]
        probs = self.probs[:count].reshape(count, self.probs.shape[1], -1).mean(2)
        labels = probs.argmax(1).tolist()
        named = [self.class_names[label] if self.class_names else str(label) for label in labels]
        nats = [
            _numbers(getattr(self, n)[:count].reshape(count, -1).mean(1)) for n in ("entropy", "epistemic", "aleatoric")
        ]
        shares = [f"{100 * share:.1f} %" for share in probs.amax(1).tolist()]
        head = ("input", "class", "probability", "total", "epistemic", "aleatoric")
        return [head, *((str(i), *cells) for i, cells in enumerate(zip(named, shares, *nats)))]


def _numbers(values: Tensor) -> list[str]:
    """Format one cell per row, with at most three numbers."""
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    return [", ".join(f"{value:.4g}" for value in row[:3]) + (", ..." if len(row) > 3 else "") for row in rows.tolist()]
