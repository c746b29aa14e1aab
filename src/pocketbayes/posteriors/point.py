"""A value per weight: the deterministic network as the simplest posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior


class Point(Posterior):
    """w = mean, no randomness."""

    name = "point"

    def __init__(self, layout: Layout, mean: Tensor) -> None:
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())

    def moments(self) -> tuple[Tensor, Tensor]:
        """The values, and std 0."""
        return self.mean, torch.zeros_like(self.mean)

    @property
    def noise_size(self) -> int:
        """A point draws nothing."""
        return 0

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """The values themselves."""
        return self.mean

    def kl(self, prior: Prior) -> Tensor:
        """0: a point value has no KL; weight decay may take its place."""
        return self.mean.new_zeros(())

    def stored(self) -> dict[str, int]:
        """N means."""
        return {"means": self.mean.numel()}

    @classmethod
    def restore(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """From the means."""
        return cls(layout, tensors["mean"])
