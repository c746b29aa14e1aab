"""Split conformal prediction: the scores of held-out examples, and the quantile that covers a share of new ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pocketbayes.base.errors import UserError

MOST_SCORES = 1000
"""Scores that a network keeps; from more of them evenly spaced ones, each rounded up, which only widens the sets."""


@dataclass(frozen=True)
class Conformal:
    """Sorted scores of held-out examples, by which new answers are made sets or intervals (Vovk et al. 2005).

    A score says how far an answer was off: `1 - p(label)` of classes, `|y - mean| / std` of real numbers. If new
    examples are drawn like the held-out ones, `P(score <= quantile(level)) >= level`.

    Attributes:
        kind: "classes" or "real".
        scores: The scores in rising order, at most `MOST_SCORES` of them.
        count: The number of held-out examples.
        samples: Passes behind each answer.
        propagation: How randomness went through the network; None for the network's own way.
    """

    kind: str
    scores: tuple[float, ...]
    count: int
    samples: int = 30
    propagation: str | None = None

    @classmethod
    def of(cls, kind: str, scores: Sequence[float], samples: int = 30, propagation: str | None = None) -> Conformal:
        """Keep the scores of held-out examples, in any order."""
        rising = sorted(scores)
        if len(rising) > MOST_SCORES:
            rising = [rising[math.ceil(place * len(rising) / MOST_SCORES) - 1] for place in range(1, MOST_SCORES + 1)]
        return cls(kind, tuple(rising), len(scores), samples, propagation)

    def quantile(self, level: float) -> float:
        """Return the score that a new example stays below with probability `level` or more.

        It is the `ceil((n + 1) level)`-th smallest of n scores; infinity if n is too small to promise the level.
        """
        check_level(level)
        rank = math.ceil((self.count + 1) * level)
        if rank > self.count:
            return math.inf
        return self.scores[math.ceil(rank * len(self.scores) / self.count) - 1]

    def to_json(self) -> dict[str, Any]:
        """Return plain values, the scores to seven digits."""
        return {**asdict(self), "scores": [float(f"{score:.7g}") for score in self.scores]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Conformal:
        """Rebuild what `to_json` returned."""
        return cls(**{**values, "scores": tuple(map(float, values["scores"]))})


def check_level(level: float) -> None:
    """Reject a level that is no share."""
    if not 0 < level < 1:
        raise UserError(f"level must lie between 0 and 1, such as 0.9, not {level}")
