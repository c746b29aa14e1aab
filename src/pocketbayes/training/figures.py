"""What steps compute, read from the device as seldom as it allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

STEPS_BETWEEN_READS = 50
"""On a device that computes while Python goes on: reading a number there makes Python wait for all that is queued."""

Number = Tensor | float


@dataclass(frozen=True)
class StepFigures:
    """The numbers of one step, which may still be on the device.

    Attributes:
        step: The step's number within its epoch.
        nlls: The parts of the mean NLL, which sum up to it.
        kl: The KL divergence; None where it does not act.
        beta: What it counts for in the loss, over the number of examples.
        examples: The number of training examples.
        gradient_norm: Of all gradients together; None if there are none.
    """

    step: int
    nlls: Sequence[Number]
    kl: Number | None
    beta: float
    examples: int
    gradient_norm: Number | None

    def numbers(self) -> list[Number]:
        """Return everything that has to be read."""
        return [*self.nlls, *(number for number in (self.kl, self.gradient_norm) if number is not None)]

    def row(self) -> dict[str, float]:
        """Return loss, NLL and KL; the numbers must have been read."""
        nll = sum(map(float, self.nlls))
        if self.kl is None:
            return {"loss": nll, "nll": nll}
        kl = float(self.kl)
        return {"loss": nll + self.beta * kl / self.examples, "nll": nll, "kl": kl}

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are numbers."""
        return math.isfinite(self.row()["loss"]) and math.isfinite(float(self.gradient_norm or 0.0))


def read(figures: Sequence[StepFigures]) -> list[StepFigures]:
    """Return the figures of some steps with their numbers, all of them in one transfer."""
    tensors = [number for each in figures for number in each.numbers() if isinstance(number, Tensor)]
    values = dict(zip(map(id, tensors), torch.stack(tensors).tolist() if tensors else ()))

    def number(of: Number | None) -> Any:
        return values.get(id(of), of)

    return [
        replace(each, nlls=[*map(number, each.nlls)], kl=number(each.kl), gradient_norm=number(each.gradient_norm))
        for each in figures
    ]


def steps_between_reads(device: torch.device) -> int:
    """Return after how many steps their numbers are read: where that costs nothing, after each."""
    return 1 if device.type == "cpu" else STEPS_BETWEEN_READS
