"""The calibration stored with a network: two numbers fitted on held-out data."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbayes.base.errors import UserError


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
