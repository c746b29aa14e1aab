"""A mean and a std per weight, all independent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from pocketbayes.posteriors.base import Posterior, softplus_inverse
from pocketbayes.posteriors.coding import MEAN, raw_std
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior


class MeanField(Posterior):
    """w_i ~ N(mean_i, std_i^2), std = softplus(rho)."""

    name = "mean-field"
    tensors: ClassVar = {"mean": MEAN, "rho": raw_std("weights")}

    def __init__(self, layout: Layout, mean: Tensor, std: Tensor) -> None:
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())
        self.rho = nn.Parameter(softplus_inverse(std.detach()))
        self._all_random = bool((std > 0).all())  # a std of 0 has no gradient and stays 0

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means and softplus(rho)."""
        return self.mean, F.softplus(self.rho)

    def kl(self, prior: Prior) -> Tensor:
        """Return the sum over the random weights, without looking for others where there were none at the start."""
        return prior.total_kl(*self.moments()) if self._all_random else super().kl(prior)

    @classmethod
    def restore(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """Take over mean and rho, bit for bit."""
        self = super().restore(layout, tensors, config)
        self._all_random = bool(tensors["rho"].min().exp() > 0)
        return self
