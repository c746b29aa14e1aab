"""A Gaussian with diagonal plus low-rank covariance over some weights, as SWAG and Laplace return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.coding import FIXED_MEAN, Coding, positions
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior


class LowRank(Posterior):
    """`w ~ N(mean, diag(std^2) + F F^T)` over the k weights of `index`, `w = mean` elsewhere.

    A dense covariance has std = 0 and F as its square root. The tensors are buffers, since nothing is trained.
    """

    name = "low-rank"
    tensors: ClassVar = {
        "mean": FIXED_MEAN,
        "std": Coding("std", ("random",), low=0, trained=False),
        "factor": Coding("std", ("random", "rank"), trained=False, counted="factors"),
        "index": positions("random", optional=True),
    }

    def __init__(self, layout: Layout, mean: Tensor, std: Tensor, factor: Tensor, index: Tensor | None = None) -> None:
        """Take means (n,), diagonal stds (k,), F (k, rank), and positions (k,); without positions k = n."""
        super().__init__(layout)
        self.mean = nn.Buffer(mean.detach().clone())
        self.std = nn.Buffer(std.detach().clone())
        # Use a file's memory order, since products in another order differ in the last bit.
        self.factor = nn.Buffer(factor.detach().clone(memory_format=torch.contiguous_format))
        self.index: Tensor | None
        self.register_buffer("index", None if index is None else index.detach().clone())

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of weights, all of them random if there are no positions."""
        return {"weights": layout.size} | ({} if "index" in tensors else {"random": layout.size})

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means and the marginal stds sqrt(std^2 + sum_r F_r^2), 0 outside the index."""
        std = self._marginal_std()
        if self.index is not None:
            std = torch.zeros_like(self.mean).index_copy(0, self.index, std)
        return self.mean, std

    def weight_means(self) -> Tensor:
        """Return the means as they are stored."""
        return self.mean

    def random_slots(self) -> list[int]:
        """Return the slots of the random weights."""
        return super().random_slots() if self.index is None else self.layout.slots_of(self.index)

    @property
    def noise_size(self) -> int:
        """k numbers for the diagonal and one per column of F."""
        return self.std.numel() + self.factor.shape[1]

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return mean + std eps + F xi."""
        own, shared = self._noise(noise, self.mean).split([self.std.numel(), self.factor.shape[1]])
        change = torch.addcmul(self.factor @ shared, self.std, own)
        return self.mean + change if self.index is None else self.mean.index_add(0, self.index, change)

    def draws(self, noise: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return all draws by one product with F, only of the requested weights."""
        own, shared = noise.split([self.std.numel(), self.factor.shape[1]], dim=1)
        change = torch.addcmul(shared @ self.factor.T, self.std, own)
        mean = self.mean[start:stop].expand(len(noise), -1)
        if self.index is None:
            return mean + change[:, start:stop]
        given = (self.index >= start) & (self.index < start + mean.shape[1])
        return mean.index_add(1, self.index[given] - start, change[:, given])

    def project(self, gradient: Tensor, start: int = 0) -> Tensor:
        """Compute std g and F^T g of the random weights."""
        places = torch.arange(self.layout.size, device=gradient.device) if self.index is None else self.index
        given = (places >= start) & (places < start + gradient.shape[1])
        random = gradient.new_zeros(len(gradient), len(places))
        random[:, given] = gradient[:, places[given] - start]
        return torch.cat([random * self.std, random @ self.factor], 1)

    def kl(self, prior: Prior) -> Tensor:
        """Compute `KL(q || prior) = sum_i KL(q_i || prior_i) + total correlation of q`, exact for factorised priors."""
        return super().kl(prior) + self.total_correlation()

    def total_correlation(self) -> Tensor:
        """Compute `-log det(R) / 2` in nats, with R the correlation matrix of the random weights; infinite if singular.

        With a diagonal part, `det(D^2 + G G^T) = det(D^2) det(I + G^T D^-2 G)` needs no matrix larger than the rank.
        """
        marginal = self._marginal_std()
        random = marginal > 0
        scale = marginal[random].double()
        own, factor = self.std[random].double() / scale, self.factor[random].double() / scale[:, None]
        if bool((own > 0).all()):
            ratio = factor / own[:, None]
            small = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device) + ratio.T @ ratio
            log_det = 2 * own.log().sum() + torch.linalg.slogdet(small).logabsdet
        elif int((own == 0).sum()) > factor.shape[1]:
            log_det = own.new_tensor(-torch.inf)
        else:
            log_det = torch.linalg.slogdet(torch.diag(own.square()) + factor @ factor.T).logabsdet
        result: Tensor = -0.5 * log_det
        return result.to(self.mean.dtype)

    def _marginal_std(self) -> Tensor:
        return (self.std.square() + self.factor.square().sum(1)).sqrt()
