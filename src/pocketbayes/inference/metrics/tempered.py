"""NLL and calibration error after a temperature, cross-fitted on halves, from sums over a grid of temperatures."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pocketbayes.inference.metrics import calibration
from pocketbayes.inference.metrics.accumulators import SMALLEST, Sums

TEMPERATURES = torch.logspace(-1, 1, 33, dtype=torch.float64)
MAX_PIXELS = 4096
"""Pixels of a batch that count, evenly spaced: their labels are far from independent."""


class Tempered(Sums):
    """The measures of `p^(1/T) / sum p^(1/T)`, T fitted by NLL on every second example and measured on the others.

    Both halves take both parts (Ashukha et al. 2020), so that no example is judged by a temperature it was part of.

    Args:
        classes: number of classes.
        bins: bins of the calibration error.
        ignore_index: label of examples (pixels) to leave out.
    """

    def __init__(self, classes: int, bins: int = 15, ignore_index: int | None = None) -> None:
        super().__init__()
        self.classes, self.bins, self.ignore_index = classes, bins, ignore_index
        self._seen = 0

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch of probabilities (n, classes, ...) and integer labels (n, ...)."""
        p, y = probs.detach().float().movedim(1, -1).reshape(-1, self.classes), labels.reshape(-1).long()
        if probs.ndim > 2:
            stride = math.ceil(len(y) / MAX_PIXELS)
            p, y = p[::stride], y[::stride]
        if self.ignore_index is not None:
            p, y = p[y != self.ignore_index], y[y != self.ignore_index]
        half = (torch.arange(len(y), device=y.device) + self._seen) % 2
        self._seen += len(y)
        log_p = p.clamp(min=SMALLEST).log()
        nll, tables = [], []
        for temperature in TEMPERATURES.tolist():
            scaled = (log_p / temperature).log_softmax(1)
            each = -scaled.gather(1, y[:, None])[:, 0].double()
            nll.append(torch.stack([each[half == part].sum() for part in (0, 1)]))
            confidence, answer = scaled.max(1)
            confidence = confidence.exp().double()
            cells = calibration.equal_width_cells(confidence, self.bins) + self.bins * half
            tables.append(calibration.table(cells, confidence, answer == y, 2 * self.bins))
        self._add(
            count=torch.tensor(len(y)),
            halves=torch.bincount(half, minlength=2),
            nll=torch.stack(nll),
            tables=torch.stack(tables),
        )

    def temperature(self) -> float:
        """Return the temperature with the lowest NLL over all examples."""
        return math.exp(lowest(self.sums["nll"].sum(1)))

    def compute(self) -> dict[str, float]:
        """Return `calibrated_nll` and `calibrated_ece`; nothing where a half is empty."""
        if not self.sums or not bool((self.sums["halves"] > 0).all()):
            return {}
        total, bins = 0.0, torch.zeros(self.bins, self.sums["tables"].shape[-1], dtype=torch.float64)
        for fitted, measured in ((0, 1), (1, 0)):
            best = lowest(self.sums["nll"][:, fitted])
            total += _value_at(self.sums["nll"][:, measured], best)
            nearest = int((TEMPERATURES.log() - best).abs().argmin())
            bins += self.sums["tables"][nearest].view(2, self.bins, -1)[measured]
        count = float(self.sums["count"])
        return {"calibrated_nll": total / count, "calibrated_ece": float(calibration.calibration_error(bins))}


def _parabola(values: Tensor, near: int) -> tuple[float, float, float]:
    """Return `a, b, c` of the parabola `a t^2 + b t + c` through three neighbours, t in steps from the middle one."""
    left, middle, right = values[near - 1 : near + 2].tolist()
    return (left + right) / 2 - middle, (right - left) / 2, middle


def lowest(values: Tensor) -> float:
    """Return the logarithm of the temperature where a curve over the grid is lowest."""
    grid = TEMPERATURES.log()
    near = int(values.argmin().clamp(1, len(grid) - 2))
    a, b, _ = _parabola(values, near)
    shift = min(max(-b / (2 * a), -1.0), 1.0) if a > 0 else 0.0
    return float(grid[near] + shift * (grid[1] - grid[0]))


def _value_at(values: Tensor, log_temperature: float) -> float:
    """Return a curve's value between the points of the grid."""
    grid = TEMPERATURES.log()
    near = int((grid - log_temperature).abs().argmin().clamp(1, len(grid) - 2))
    a, b, c = _parabola(values, near)
    step = (log_temperature - float(grid[near])) / float(grid[1] - grid[0])
    return a * step * step + b * step + c
