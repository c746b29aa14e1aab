"""The stopping rule of adaptive passes: the order of members, and when a prediction is settled.

An input is settled after step k if its calibrated maximum probability exceeds a threshold. Each step has its own
temperature, since one member is overconfident and five are not. The best member runs first, then the one that improves
the prediction most, and so on. All is fitted on validation data so that the expected rise of the NLL stays within a
given fraction.

The rise is estimated by the mean entropy of the calibrated predictions, which is their expected NLL. The NLL of the
labels depends on a few confident errors: with 5000 examples its rise has a standard error above one per cent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.base.naming import check_fields, naming_arguments
from pocketbayes.inference.metrics.calibration import temperature

THRESHOLDS = torch.linspace(0.0, 9.0, 181, dtype=torch.float64).sigmoid()
"""Candidate thresholds, evenly spaced in log(p / (1 - p)) from 0.5 to 0.9999."""
NEVER = 2.0
"""A threshold that no probability reaches."""
ORDERING_ROWS = 5000
"""Number of validation examples used to choose the order of members."""


@dataclass(frozen=True)
class Stopping:
    """The stopping rule of adaptive passes.

    Attributes:
        steps: The number of passes after each step.
        temperatures: The temperature of the prediction after each step.
        threshold: The calibrated maximum probability at which an input is settled.
        max_rise: The requested bound on the rise of the NLL, as a fraction of the NLL with all passes.
        rise: The expected rise on the validation data.
        error: The standard error of the rise by the labels.
        passes: The mean number of passes on the validation data.
        order: The order of the members; empty for the mixture's own order.
        measured_rise: The rise by the labels of the validation data.
    """

    steps: tuple[int, ...]
    temperatures: tuple[float, ...]
    threshold: float
    max_rise: float
    rise: float
    error: float
    passes: float
    order: tuple[int, ...] = ()
    measured_rise: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.steps or len(self.temperatures) != len(self.steps):
            raise UserError("a stopping rule needs a temperature per step")
        if not all(math.isfinite(value) and value > 0 for value in self.temperatures):
            raise UserError("the temperatures of a stopping rule must be positive numbers")
        if self.order and sorted(self.order) != list(range(len(self.steps))):
            raise UserError("the order of a stopping rule must name every step once")

    @classmethod
    @naming_arguments
    def of(cls, values: Mapping[str, Any]) -> Stopping:
        """Build from JSON values."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def ordered(self, steps: Sequence[Any]) -> list[Any]:
        """Return the steps in the order they are taken."""
        return [steps[place] for place in self.order or range(len(steps))]


def choose_stopping(
    probs: Tensor,
    labels: Tensor,
    passes: Sequence[int],
    max_rise: float,
    shares: Sequence[float],
    *,
    reorder: bool,
    max_passes: float | None = None,
) -> Stopping:
    """Choose the order, temperatures and the lowest threshold whose expected rise of the NLL is within a bound.

    The bound also holds for all higher thresholds, and the rise measured by the labels is not significantly above it.

    Args:
        probs: (steps, n, classes) probabilities of each step alone.
        labels: (n,) integer labels.
        passes: The number of passes of each step.
        max_rise: The largest rise of the NLL as a fraction of the NLL with all passes.
        shares: The weight of each step in the prediction.
        reorder: Whether to order the steps by quality.
        max_passes: A bound on the mean number of passes instead of `max_rise`; the highest threshold that meets it is
            chosen.
    """
    if not (math.isfinite(max_rise) and max_rise >= 0):
        raise UserError(f"max_rise must be a fraction of at least 0, such as 0.01, not {max_rise}")
    if max_passes is not None and not max_passes >= min(passes):
        raise UserError(f"max_passes={max_passes} is too small: the first step takes {min(passes)}")
    labels, weighted = labels.long(), probs.double() * torch.tensor(shares, dtype=torch.float64)[:, None, None]
    order = _best_first(weighted, labels) if reorder else list(range(len(probs)))
    answers = _log_mean(weighted[order].cumsum(0))
    heats = tuple(temperature(each, labels) for each in answers)
    scaled = torch.stack([(each / heat).log_softmax(1) for each, heat in zip(answers, heats)])
    sure = scaled.amax(2).exp()
    losses = -scaled.gather(2, labels.expand(len(order), -1)[..., None])[..., 0]
    entropies = torch.special.entr(scaled.exp()).sum(2)
    total = losses[-1].mean().clamp(min=1e-12)
    cost = torch.tensor([passes[place] for place in order]).cumsum(0)

    def outcome(threshold: float) -> tuple[float, float, float, float]:
        """Return the change of the entropy, the rise of the NLL, its standard error and the mean passes."""
        last = last_steps(sure, threshold)
        change, rises = ((values.gather(0, last[None])[0] - values[-1]) / total for values in (entropies, losses))
        error = float(rises.std(correction=0)) / math.sqrt(len(rises))
        return float(change.mean()), float(rises.mean()), error, float(cost[last].double().mean())

    chosen, lowest = (NEVER, 0.0, *outcome(NEVER)[1:]), 0.0
    for threshold in reversed(THRESHOLDS.tolist()):
        change, rise, error, mean_passes = outcome(threshold)
        lowest = min(lowest, change)  # all members together are often less certain than one
        if max_passes is None and (change - lowest > max_rise or rise - 2 * error > max_rise):
            break
        chosen = threshold, change - lowest, rise, error, mean_passes
        if max_passes is not None and mean_passes <= max_passes:
            break
    threshold, expected, rise, error, mean_passes = chosen
    found = tuple(cost.tolist()), heats, threshold, max_rise, expected, error, mean_passes
    return Stopping(*found, tuple(order) if reorder else (), rise)


def last_steps(sure: Tensor, threshold: float) -> Tensor:
    """Return the step at which each input is settled, from the confidence (steps, n) after each step."""
    settled = sure >= threshold
    settled[-1] = True
    return settled.int().argmax(0)


def _best_first(weighted: Tensor, labels: Tensor) -> list[int]:
    """Order members greedily by the calibrated NLL together with those before them."""
    step = -(-len(labels) // ORDERING_ROWS)
    weighted, labels = weighted[:, ::step], labels[::step]
    order: list[int] = []
    left, total = list(range(len(weighted))), torch.zeros_like(weighted[0])
    while left:
        best = min(left, key=lambda place: _calibrated_nll(total + weighted[place], labels))
        total = total + weighted[best]
        order.append(best)
        left.remove(best)
    return order


def _calibrated_nll(total: Tensor, labels: Tensor) -> float:
    answers = _log_mean(total)
    scaled = (answers / temperature(answers, labels)).log_softmax(1)
    return float(-scaled.gather(1, labels[:, None]).mean())


def _log_mean(total: Tensor) -> Tensor:
    """Return the logarithm of mean probabilities from their weighted sums."""
    return (total / total.sum(-1, keepdim=True)).clamp(min=torch.finfo(torch.float32).tiny).log()
