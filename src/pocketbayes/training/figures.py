"""The figures of training steps, read from the device as rarely as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

STEPS_BETWEEN_READS = 50
"""On asynchronous devices, where reading a number waits for all queued operations."""

Number = Tensor | float


@dataclass(frozen=True)
class StepFigures:
    """The numbers of one step, which may still be on the device.

    Attributes:
        step: The step's number within its epoch.
        nlls: The parts of the mean NLL, which sum to it.
        kl: The KL divergence; None if it has no effect.
        beta: The weight of KL / N in the loss.
        examples: N, the number of training examples.
        gradient_norm: The norm of all gradients together; None if there are none.
    """

    step: int
    nlls: Sequence[Number]
    kl: Number | None
    beta: float
    examples: int
    gradient_norm: Number | None

    def numbers(self) -> list[Number]:
        """Return the numbers to read."""
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
        """Whether loss and gradient are finite."""
        return math.isfinite(self.row()["loss"]) and math.isfinite(float(self.gradient_norm or 0.0))


def read(figures: Sequence[StepFigures]) -> list[StepFigures]:
    """Return the figures of some steps with their numbers, read in one transfer."""
    tensors = [number for each in figures for number in each.numbers() if isinstance(number, Tensor)]
    values = dict(zip(map(id, tensors), torch.stack(tensors).tolist() if tensors else ()))

    def number(of: Number | None) -> Any:
        return values.get(id(of), of)

    return [
        replace(each, nlls=[*map(number, each.nlls)], kl=number(each.kl), gradient_norm=number(each.gradient_norm))
        for each in figures
    ]


def steps_between_reads(device: torch.device) -> int:
    """Return the number of steps between reads: 1 where reading is free."""
    return 1 if device.type == "cpu" else STEPS_BETWEEN_READS
