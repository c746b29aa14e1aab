"""The running average of the parameters, which a stage of training returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pocketbayes.network import Network

POWER = 16
"""How strongly late steps count: step t has a weight proportional to `t^POWER`."""
RESOLUTION = 512
"""After t steps an update follows every `t / RESOLUTION` steps, so that long runs spend no time on them."""


class Averages:
    """The polynomial-decay average of a network's parameters (Shamir and Zhang, 2013).

    It covers about the last sixteenth of the steps, whatever their number. The noise of steps and of drawn weights
    cancels as under a falling learning rate, and yet a run can be resumed for more epochs. Running statistics of batch
    norm are averages already and stay as they are.
    """

    def __init__(self, network: Network, active: bool = True) -> None:
        self.parameters = [p for p in network.parameters() if p.requires_grad] if active else []
        self.restart()

    def restart(self) -> None:
        """Forget the past, as after a swap of weights."""
        self.steps = self.last = 0
        self.values: list[Tensor] = []

    def update(self) -> None:
        """Count a step, and take its parameters in if they are due."""
        self.steps += 1
        if not self.parameters or self.steps - self.last <= self.steps // RESOLUTION:
            return
        with torch.no_grad():
            current = [parameter.detach() for parameter in self.parameters]
            if not self.values:
                self.values = [value.clone() for value in current]
            torch._foreach_lerp_(self.values, current, 1 - (self.last / self.steps) ** (POWER + 1))
        self.last = self.steps

    def apply(self) -> None:
        """Set the parameters to their averages."""
        _copy(self.values, self.parameters)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set the parameters to their averages, and back at the end."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        self.apply()
        try:
            yield
        finally:
            _copy(before, self.parameters)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"steps": self.steps, "last": self.last, "values": list(self.values)}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a state; from None, in checkpoints of earlier versions, start anew."""
        if state is None:
            return
        steps, last, values = (state[name] for name in ("steps", "last", "values"))
        if type(steps) is not int or type(last) is not int or not 0 <= last <= steps:
            raise ValueError(f"the average ends at step {last!r} of {steps!r}")
        if values and [value.shape for value in values] != [p.shape for p in self.parameters]:
            raise ValueError("the averages have other shapes than the parameters")
        if not all(value.isfinite().all() for value in values):
            raise ValueError("an average is not finite")
        self.steps, self.last = steps, last
        self.values = [value.to(p).clone() for value, p in zip(values, self.parameters)]


def _copy(values: list[Tensor], parameters: list[torch.nn.Parameter]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values):
            parameter.copy_(value)
