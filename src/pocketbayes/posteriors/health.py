"""How much training changed the stds of a posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.base.errors import warn
from pocketbayes.posteriors.base import Posterior

MAX_POSITIONS = 4096
"""Number of weights whose initial std is recorded, enough for a rank correlation to two digits."""
MIN_MOVEMENT = 0.1
"""Smallest median relative change of learned stds."""
MAX_RANK_CORRELATION = 0.9
"""Largest rank correlation of learned stds with their initial values."""


class StdsNotLearnedWarning(UserWarning):
    """Stds that training left near their initial values, so that the uncertainty reflects the initialisation."""


@dataclass(frozen=True)
class Health:
    """How much training changed the stds of a posterior.

    Attributes:
        std_rank_correlation: Spearman's rank correlation of the stds with their initial values; 0 for stds that differ
            after a constant initialisation. None if the initial values are unknown.
        std_movement: Median of `|std / initial std - 1|`; None if the initial values are unknown.
        snr: Median signal-to-noise ratio `|mean| / std` of the random weights; None if no weight is random.
        learned: Whether the movement is at least 0.1 and the rank correlation below 0.9; None if the initial values are
            unknown.
    """

    std_rank_correlation: float | None = None
    std_movement: float | None = None
    snr: float | None = None
    learned: bool | None = None

    @classmethod
    def average(cls, each: Sequence[Health]) -> Health:
        """Return means over networks; `learned` requires that all have learned."""
        if len(each) == 1:
            return each[0]

        def mean(name: str) -> float | None:
            known = [value for one in each if (value := getattr(one, name)) is not None]
            return sum(known) / len(known) if known else None

        learned = [one.learned for one in each if one.learned is not None]
        verdict = all(learned) if learned else None
        return cls(mean("std_rank_correlation"), mean("std_movement"), mean("snr"), verdict)

    def __str__(self) -> str:
        if self.snr is None:
            return "no stds"
        signal = f"median |mean| / std {self.snr:.3g}"
        if self.learned is None:
            return signal
        percent = 100 * (self.std_movement or 0)
        moved = f"stds moved by {percent:{'.3g' if percent < 1000 else ',.0f'}} %"
        rank = f"rank correlation with their initial values {self.std_rank_correlation:.3f}"
        return f"stds {'learned' if self.learned else 'not learned'}: {moved}, {rank}, {signal}"


@dataclass(frozen=True)
class FirstStds:
    """The initial stds of a sample of weights.

    Attributes:
        positions: The weights, up to `MAX_POSITIONS` of the random ones, evenly spaced.
        stds: Their stds.
    """

    positions: Tensor
    stds: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, posterior: Posterior) -> FirstStds | None:
        """Record the current stds; None if no weight is random."""
        std = posterior.moments()[1]
        random = (std > 0).nonzero().flatten()
        if not len(random):
            return None
        steps = torch.linspace(0, len(random) - 1, min(len(random), MAX_POSITIONS), dtype=torch.float64)
        positions = random[steps.round().long().to(random.device)]
        return cls(positions.cpu(), std[positions].float().cpu().clone())


@torch.no_grad()
def measure_health(posterior: Posterior, first: FirstStds | None) -> Health:
    """Compare a posterior's stds with the initial ones, for weights that are random at both times."""
    mean, std = (moment.float().cpu() for moment in posterior.moments())
    random = std > 0
    if not bool(random.any()):
        return Health()
    snr = float((mean[random].abs() / std[random]).median())
    if first is None or posterior.drops_units or len(mean) <= int(first.positions.max()):
        return Health(snr=snr)  # dropout's stds follow from the means and cannot learn
    now, kept = std[first.positions], random[first.positions]
    now, before = now[kept], first.stds[kept]
    if not len(now):
        return Health(snr=snr)
    movement = float((now / before - 1).abs().median())
    correlation = rank_correlation(now, before)
    return Health(correlation, movement, snr, movement >= MIN_MOVEMENT and correlation < MAX_RANK_CORRELATION)


def tell_health(found: Health, show: Callable[[str], object]) -> None:
    """Show how much the stds of a trained network changed, or warn if they did not learn."""
    if found.learned is False:
        warn(
            f"{found}: the uncertainty reflects the initialisation; train for more epochs, raise std_lr, or change "
            "beta, prior or std_init (docs/learning.md)",
            StdsNotLearnedWarning,
        )
    elif found.snr is not None:
        show(str(found))


def rank_correlation(now: Tensor, before: Tensor) -> float:
    """Return Spearman's rank correlation; for constant initial values 0, or 1 if all are still equal."""
    from scipy.stats import spearmanr

    if len(now.unique()) == 1:
        return 1.0
    return float(spearmanr(now, before).statistic) if len(before.unique()) > 1 else 0.0
