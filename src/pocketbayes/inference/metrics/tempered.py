"""Measures after cross-fitted temperature scaling, from sums over a grid of temperatures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.inference.metrics import calibration
from pocketbayes.inference.metrics.accumulators import SMALLEST_PROBABILITY, Sums

TEMPERATURES = torch.logspace(-1, 1, 33, dtype=torch.float64)
FINE_GRID = torch.linspace(math.log(0.1), math.log(10), 2001, dtype=torch.float64)
"""Logarithms of the temperatures at which curves are interpolated."""
INTERVAL_NATS = 1.92
"""Half the 95 % quantile of chi-squared with one degree of freedom."""
MAX_INTERVAL_RATIO = 1.5
"""Largest ratio of an interval's ends for which the best temperature is used."""
MAX_PIXELS = 4096
"""Largest number of evenly spaced pixels per batch, since neighbouring labels are dependent."""


class Tempered(Sums):
    """Measures of `p^(1/T) / sum p^(1/T)`, with T fitted by NLL on every second example and measured on the others.

    Both halves take both roles (Ashukha et al. 2020), so that no example contributes to its own temperature. A half
    that is too small to determine a temperature uses a cautious one, like `pb.calibrate`.

    Args:
        classes: number of classes.
        bins: bins of the calibration error.
        ignore_index: label of examples (pixels) to ignore.
    """

    def __init__(self, classes: int, bins: int = 15, ignore_index: int | None = None) -> None:
        super().__init__()
        self.classes, self.bins, self.ignore_index = classes, bins, ignore_index
        self._seen = 0

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch of probabilities (n, classes, ...) and integer labels (n, ...)."""
        rows = chosen_labels(labels, self.ignore_index)
        p, y = probs.detach().float().movedim(1, -1).reshape(-1, self.classes)[rows], labels.reshape(-1)[rows].long()
        half = (torch.arange(len(y), device=y.device) + self._seen) % 2
        self._seen += len(y)
        log_p = p.clamp(min=SMALLEST_PROBABILITY).log()
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
        """Return the temperature fitted to all examples (see `fit_temperature`)."""
        return fit_temperature(self.sums["nll"].sum(1)).value

    def compute(self) -> dict[str, float]:
        """Return `calibrated_nll` and `calibrated_ece`; empty if a half has no examples."""
        if not self.sums or not bool((self.sums["halves"] > 0).all()):
            return {}
        total, bins = 0.0, torch.zeros(self.bins, self.sums["tables"].shape[-1], dtype=torch.float64)
        for fitted, measured in ((0, 1), (1, 0)):
            log_temperature = math.log(fit_temperature(self.sums["nll"][:, fitted]).value)
            place = int((FINE_GRID - log_temperature).abs().argmin())
            total += float(_between(self.sums["nll"][:, measured])[place])
            nearest = int((TEMPERATURES.log() - log_temperature).abs().argmin())
            bins += self.sums["tables"][nearest].view(2, self.bins, -1)[measured]
        count = float(self.sums["count"])
        return {"calibrated_nll": total / count, "calibrated_ece": float(calibration.calibration_error(bins))}


def chosen_labels(labels: Tensor, ignore_index: int | None) -> Tensor:
    """Return the places in `labels.flatten()` that count: all examples, or evenly spaced pixels, but those ignored."""
    stride = math.ceil(labels.numel() / MAX_PIXELS) if labels.ndim > 1 else 1
    places = torch.arange(0, labels.numel(), max(stride, 1), device=labels.device)
    return places if ignore_index is None else places[labels.flatten()[places] != ignore_index]


class TemperatureFit(NamedTuple):
    """A fitted temperature.

    Attributes:
        value: The temperature to use: `best`, or if the interval is wide, its value nearest to 1.
        best: The temperature with the lowest NLL.
        low: The lower end of the 95 % interval.
        high: The upper end.
    """

    value: float
    best: float
    low: float
    high: float

    @property
    def cautious(self) -> bool:
        """Whether the interval was too wide to use its best value."""
        return self.value != self.best


def fit_temperature(nll: Tensor) -> TemperatureFit:
    """Fit a temperature by the total NLL at each of `TEMPERATURES`.

    The interval holds all temperatures whose NLL is within 1.92 nats of the minimum.

    Args:
        nll: The NLL summed over examples, (len(TEMPERATURES),).
    """
    values = _between(nll)
    inside = FINE_GRID[values <= values.min() + INTERVAL_NATS]
    best, low, high = (math.exp(float(t)) for t in (FINE_GRID[values.argmin()], inside.min(), inside.max()))
    value = best if high / low <= MAX_INTERVAL_RATIO else min(max(1.0, low), high)
    return TemperatureFit(value, best, low, high)


def _between(values: Tensor) -> Tensor:
    """Interpolate a curve over `TEMPERATURES` at `FINE_GRID`, by the parabola around the nearest temperature."""
    grid = TEMPERATURES.log()
    position = (FINE_GRID - grid[0]) / (grid[1] - grid[0])
    near = position.round().long().clamp(1, len(grid) - 2)
    left, middle, right = (values.cpu().double()[near + side] for side in (-1, 0, 1))
    t = position - near
    return middle + 0.5 * t * (right - left) + 0.5 * t * t * (left + right - 2 * middle)


def calibrated_nll(probs: Tensor, labels: Tensor) -> float:
    """Compute the NLL after temperature scaling, fitted on every second example and measured on the others, both ways.

    Args:
        probs: (n, classes).
        labels: (n,) integer labels.
    """
    if len(labels) < 2:
        raise UserError("a calibrated NLL needs two examples: one half to fit a temperature, the other to measure")
    tempered = Tempered(probs.shape[1])
    tempered.update(probs, labels)
    return tempered.compute()["calibrated_nll"]


def dee(calibrated_nll: float, curve: Sequence[float]) -> float:
    """Compute how many independent networks must be averaged to reach a calibrated NLL.

    It is linear between the points of the curve, 1 for a method no better than one network, as in the paper, and
    infinite for a method better than every ensemble of the curve.

    Args:
        calibrated_nll: The method's calibrated NLL.
        curve: The calibrated NLL of 1, 2, ... independent networks.
    """
    if not len(curve) or not all(map(math.isfinite, (*curve, calibrated_nll))):
        raise UserError("a deep ensemble equivalent needs finite figures: a calibrated NLL, and one or more to compare")
    best = list(itertools.accumulate(map(float, curve), min))  # noise may make a curve rise
    if calibrated_nll >= best[0]:
        return 1.0
    for count, (before, after) in enumerate(itertools.pairwise(best), 1):
        if calibrated_nll >= after:
            return count + (before - calibrated_nll) / (before - after)
    return math.inf
