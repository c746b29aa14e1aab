"""Rank-1 Bayesian networks: one value per weight times random factors per input and output unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.posteriors.base import Posterior, softplus_inverse
from pocketbayes.posteriors.coding import MEAN, Coding, raw_std
from pocketbayes.posteriors.gaussian import safe_sqrt
from pocketbayes.posteriors.layout import Layout, Slot
from pocketbayes.posteriors.priors import Prior


class Rank1(Posterior):
    """`w_ab = value_ab s_a r_b` with `s_a, r_b ~ N(factor, std^2)` for output unit a and input unit b.

    Weights of a row or column share a factor, so draws are correlated. A layer of `a x b` weights takes `a + b` stds.
    """

    name = "rank-1"
    tensors: ClassVar = {"mean": MEAN, "factor": Coding("mean", ("factors",)), "rho": raw_std("factors")}
    row: Tensor
    column: Tensor

    def __init__(self, layout: Layout, mean: Tensor, factor: Tensor, std: Tensor) -> None:
        """Take the values (n,), and mean and std of all factors, see `count_factors`."""
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())
        self.factor = nn.Parameter(factor.detach().clone())
        self.rho = nn.Parameter(softplus_inverse(std.detach()))
        self.derive()

    def derive(self) -> None:
        """Find every weight's output and input factor."""
        for name, index in zip(("row", "column"), _factor_indices(self.layout)):
            self.register_buffer(name, index.to(self.mean.device), persistent=False)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and std of products of independent factors."""
        variance = F.softplus(self.rho).square()
        m1, m2 = self._both(self.factor)
        v1, v2 = self._both(variance)
        spread = m1.square() * v2 + v1 * m2.square() + v1 * v2
        return self.mean * m1 * m2, self.mean.abs() * safe_sqrt(spread)

    @property
    def noise_size(self) -> int:
        """One number per factor."""
        return self.factor.numel()

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return one draw of all weights, from one draw of every factor."""
        first, second = self._both(torch.addcmul(self.factor, F.softplus(self.rho), self._noise(noise, self.factor)))
        return self.mean * first * second

    def kl(self, prior: Prior) -> Tensor:
        """Sum the KL over factors, with the prior shifted to a centre of 1."""
        return prior.total_kl(self.factor - 1, F.softplus(self.rho))

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of weights and of factors."""
        return {"weights": layout.size, "factors": count_factors(layout)}

    def _both(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value of every weight's output factor and of its input factor."""
        return values.gather(0, self.row), values.gather(0, self.column)


def count_factors(layout: Layout) -> int:
    """Count the factors of a layout: one per output unit and one per input unit (one for a bias)."""
    return sum(outputs + inputs for outputs, inputs, _ in map(_axes, layout.slots))


def _axes(slot: Slot) -> tuple[int, int, int]:
    """Return the numbers of output units, input units and weights per pair of them."""
    outputs, inputs = slot.shape[0], slot.shape[1] if len(slot.shape) > 1 else 1
    return outputs, inputs, math.prod(slot.shape[2:])


def _factor_indices(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the positions of every weight's output and input factor."""
    rows, columns, first = [], [], 0
    for slot in layout.slots:
        outputs, inputs, between = _axes(slot)
        rows.append(first + torch.arange(outputs).repeat_interleave(inputs * between))
        columns.append(first + outputs + torch.arange(inputs).repeat_interleave(between).repeat(outputs))
        first += outputs + inputs
    return torch.cat(rows), torch.cat(columns)
