"""The deterministic network as the simplest posterior: one value per weight."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.coding import MEAN
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior


class Point(Posterior):
    """Point values `w = mean` without randomness."""

    name = "point"
    tensors: ClassVar = {"mean": MEAN}

    def __init__(self, layout: Layout, mean: Tensor) -> None:
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the values, and std 0."""
        return self.mean, torch.zeros_like(self.mean)

    @property
    def noise_size(self) -> int:
        """0: a point draws nothing."""
        return 0

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return the values themselves."""
        return self.mean

    def kl(self, prior: Prior) -> Tensor:
        """Return 0: a point value has no KL; weight decay may replace it."""
        return self.mean.new_zeros(())
