"""Results of held-out data that a network keeps: calibration, and the scores of conformal prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from pocketbayes.base.errors import UserError

MOST_SCORES = 1000
"""Number of scores that a network stores; longer lists are thinned to upper quantiles, which only widens the sets."""


@dataclass(frozen=True)
class Calibration:
    """The result of `pb.calibrate`, applied by predictions.

    Attributes:
        temperature: The divisor of the logits of every draw.
        temperature_interval: The 95 % likelihood interval of the temperature.
        variance_scale: The factor on the variance of Gaussian outputs (moments, linear).
        examples: The number of held-out examples.
    """

    temperature: float = 1.0
    temperature_interval: tuple[float, float] | None = None
    variance_scale: float = 1.0
    examples: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.temperature < float("inf") and 0 < self.variance_scale < float("inf")):
            raise UserError(
                f"a calibration's temperature and variance scale must be positive, not {self.temperature} and "
                f"{self.variance_scale}"
            )
        if self.temperature_interval is not None:
            object.__setattr__(self, "temperature_interval", tuple(self.temperature_interval))


@dataclass(frozen=True)
class Conformal:
    """Sorted scores of held-out examples that turn predictions into sets or intervals (Vovk et al. 2005).

    A score measures the error of a prediction: `1 - p(label)` for classes, `|y - mean| / std` for real numbers. If new
    and held-out examples are exchangeable, `P(score <= quantile(level)) >= level`.

    Attributes:
        kind: "classes" or "real".
        scores: At most `MOST_SCORES` scores in ascending order.
        count: The number of held-out examples.
        samples: Passes per prediction.
        propagation: The propagation of the predictions; None for the network's own.
    """

    kind: str
    scores: tuple[float, ...]
    count: int
    samples: int = 30
    propagation: str | None = None

    @classmethod
    def of(cls, kind: str, scores: Sequence[float], samples: int = 30, propagation: str | None = None) -> Conformal:
        """Build from the scores of held-out examples, given in any order."""
        rising = sorted(scores)
        if len(rising) > MOST_SCORES:
            rising = [rising[math.ceil(place * len(rising) / MOST_SCORES) - 1] for place in range(1, MOST_SCORES + 1)]
        return cls(kind, tuple(rising), len(scores), samples, propagation)

    def quantile(self, level: float) -> float:
        """Return the score that a new example stays below with probability `level` or more.

        It is the `ceil((n + 1) level)`-th smallest of `n` scores, or infinity if `n` is too small to guarantee the
        level.
        """
        check_level(level)
        rank = math.ceil((self.count + 1) * level)
        if rank > self.count:
            return math.inf
        return self.scores[math.ceil(rank * len(self.scores) / self.count) - 1]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, the scores rounded to seven digits."""
        return {**asdict(self), "scores": [float(f"{score:.7g}") for score in self.scores]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Conformal:
        """Rebuild what `to_json` returned."""
        return cls(**{**values, "scores": tuple(map(float, values["scores"]))})


def check_level(level: Any) -> None:
    """Reject a level outside (0, 1)."""
    if not isinstance(level, Real) or not 0 < float(level) < 1:
        raise UserError(f"level must lie between 0 and 1, such as 0.9, not {level!r}")
