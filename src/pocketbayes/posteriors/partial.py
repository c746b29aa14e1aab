"""Partial Bayesian networks: a mean for every weight, a std for a few."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.posteriors.base import Posterior, softplus_inverse
from pocketbayes.posteriors.coding import MEAN, positions, raw_std
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior


class Partial(Posterior):
    """`w_i = mean_i + std_j eps_j` for the k chosen weights i = index_j, `w_i = mean_i` for the others.

    Only the chosen stds exist: k values, gradients, optimiser states and random numbers per draw.
    """

    name = "partial"
    tensors: ClassVar = {"mean": MEAN, "rho": raw_std("random"), "index": positions("random")}

    def __init__(self, layout: Layout, mean: Tensor, index: Tensor, std: Tensor) -> None:
        """Take all means (n,), and the positions and stds (k,) of the random weights."""
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())
        self.rho = nn.Parameter(softplus_inverse(std.detach()))
        self.index = nn.Buffer(index.detach().clone())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means, and softplus(rho) at the chosen weights, 0 elsewhere."""
        return self.mean, torch.zeros_like(self.mean).index_copy(0, self.index, F.softplus(self.rho))

    def weight_means(self) -> Tensor:
        """Return the means as they are stored."""
        return self.mean

    def random_slots(self) -> list[int]:
        """Return the slots of the random weights."""
        return self.layout.slots_of(self.index)

    @property
    def noise_size(self) -> int:
        """One number per random weight."""
        return self.index.numel()

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return one draw: the means, with noise on the chosen weights."""
        change = F.softplus(self.rho) * self._noise(noise, self.mean)
        return self.mean.index_add(0, self.index, change)

    @property
    def independent(self) -> bool:
        """True: every random weight has its own noise."""
        return True

    def kl(self, prior: Prior) -> Tensor:
        """Return the sum over the chosen weights, since point values have no KL."""
        return prior.take(self.index).total_kl(self.mean.index_select(0, self.index), F.softplus(self.rho))

    def fractions(self) -> dict[str, float]:
        """Return the fraction of random weights in every slot."""
        counts = torch.bincount(self.layout.segments(self.index.device)[self.index], minlength=len(self.layout))
        return {slot.name: int(count) / slot.size for slot, count in zip(self.layout.slots, counts)}
