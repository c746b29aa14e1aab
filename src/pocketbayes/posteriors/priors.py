"""Priors over the weights, each with its KL divergence from a Gaussian posterior."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.base.registry import Registry
from pocketbayes.posteriors.coding import Described
from pocketbayes.posteriors.fused import NormalKL, normal_kl, wide_type

PRIORS: Registry[type[Prior]] = Registry("prior")
"""Every prior by name; subclasses of `Prior` with a `name` are registered when they are defined."""


class Prior(Described, ABC):
    """A distribution over n independent weights."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):
            PRIORS.join(cls.name, cls)

    @abstractmethod
    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute KL(N(mean, std^2) || prior) in nats, one per weight; std > 0."""

    def total_kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return the sum of `kl` over all weights."""
        return self.kl(mean, std).sum()

    def raw_kl(self, mean: Tensor, rho: Tensor, std: Tensor) -> Tensor:
        """Return `total_kl` with gradients of mean and rho, where std is softplus(rho) without gradients."""
        return self.total_kl(mean, nn.functional.softplus(rho))

    def take(self, index: Tensor) -> Prior:
        """Return the prior of the chosen weights only."""
        return self

    @property
    def complete(self) -> bool:
        """Whether `kl` can be computed: a file may omit what prediction does not need."""
        return True


class Normal(Prior):
    """N(centre, std^2), centred on 0 or on pretrained weights."""

    name = "normal"

    def __init__(self, std: float = 1.0, centre: Tensor | None = None, centre_left_out: bool = False) -> None:
        """Take the std and the centre (default 0), or a note that a file omitted the centre."""
        super().__init__()
        if not std > 0:
            raise UserError(f"prior_std must be positive, not {std}")
        self.std = float(std)
        self.centre_left_out = centre_left_out and centre is None
        self.centre: Tensor | None
        self.register_buffer("centre", None if centre is None else centre.detach().clone())

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute log(s/std) + (std^2 + (mean - centre)^2) / (2 s^2) - 1/2."""
        offset = self._offset(mean)
        scale = 0.5 / self.std**2
        return scale * (std * std + offset * offset) - std.log() + (math.log(self.std) - 0.5)

    def total_kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute the sum in float64, with half the passes over the weights in forward and backward."""
        return _TotalKL.apply(self._offset(mean), std, self.std)  # type: ignore[no-any-return]

    def raw_kl(self, mean: Tensor, rho: Tensor, std: Tensor) -> Tensor:
        """Compute `total_kl` with gradients of mean and rho, in fewer passes over the weights."""
        return NormalKL.apply(self._offset(mean), rho, std, [std.numel()], self.std**2)  # type: ignore[no-any-return]

    def take(self, index: Tensor) -> Prior:
        """Return the chosen centres, the same std."""
        return self if self.centre is None else Normal(self.std, self.centre[index])

    def config(self) -> dict[str, Any]:
        """Return the prior's std."""
        return {"std": self.std, **({"centre_left_out": True} if self.centre_left_out else {})}

    @property
    def complete(self) -> bool:
        """False if a file omitted the centre."""
        return not self.centre_left_out

    def _offset(self, mean: Tensor) -> Tensor:
        if self.centre_left_out:
            raise UserError(
                "cannot compute the KL: the file omits the pretrained weights that the prior is centred on; "
                "save it with pb.save(net, path, keep_centre=True)"
            )
        return mean if self.centre is None else mean - self.centre


class _TotalKL(torch.autograd.Function):
    """The sum of `Normal.kl`."""

    @staticmethod
    def forward(ctx: Any, offset: Tensor, std: Tensor, prior_std: float) -> Tensor:
        ctx.save_for_backward(offset, std)
        ctx.scale = prior_std**-2
        return normal_kl(offset.reshape(-1), std.reshape(-1), prior_std**2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        offset, std = ctx.saved_tensors
        scale = grad * ctx.scale
        return scale * offset, torch.addcdiv(scale * std, -grad, std), None


class ScaleMixture(Prior):
    """p N(0, std1^2) + (1 - p) N(0, std2^2) (Blundell et al. 2015, Eq. 7)."""

    name = "scale-mixture"

    def __init__(self, p: float = 0.5, std1: float = 1.0, std2: float = math.exp(-6)) -> None:
        super().__init__()
        if not (0 < p < 1 and std1 > 0 and std2 > 0):
            raise UserError(f"a scale mixture needs 0 < p < 1 and positive stds, not p={p}, std1={std1}, std2={std2}")
        self.p, self.std1, self.std2 = p, std1, std2

    def log_prob(self, weight: Tensor) -> Tensor:
        """Compute log p(w) per entry."""
        square = weight * weight
        one = math.log(self.p / self.std1) - square * (0.5 / self.std1**2)
        two = math.log((1 - self.p) / self.std2) - square * (0.5 / self.std2**2)
        return torch.logaddexp(one, two) - 0.5 * math.log(2 * math.pi)

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute `-H(q) - E_q log p(w)` by an antithetic pair of draws, since there is no closed form."""
        noise = torch.randn_like(mean)
        expected = 0.5 * (self.log_prob(mean + std * noise) + self.log_prob(mean - std * noise))
        return -std.log() - 0.5 * math.log(2 * math.pi * math.e) - expected


class Empirical(Prior):
    """N(0, s_l^2) for the weights of layer l, where `s_l^2 = mean(mean^2 + std^2)` minimises the KL (empirical Bayes).

    The variances follow the posterior during training, so there is nothing to choose or store. By the envelope theorem
    the gradient is that of a normal prior with the current variances.
    """

    name = "empirical"

    def __init__(self, sizes: Sequence[int], layers: Tensor | None = None) -> None:
        """Take the number of weights per layer, in order, and, for a subset of weights, the layer of each."""
        super().__init__()
        self.sizes = tuple(int(size) for size in sizes)
        self._layers = layers

    def variances(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return the prior variance of each layer; 1 for a layer without weights."""
        squares = mean * mean + std * std
        if self._layers is None:
            return torch.stack([part.mean() if len(part) else part.new_ones(()) for part in squares.split(self.sizes)])
        counts = torch.bincount(self._layers, minlength=len(self.sizes))
        sums = squares.new_zeros(len(self.sizes)).index_add(0, self._layers, squares)
        return torch.where(counts > 0, sums / counts.clamp(min=1), 1.0)

    def spread(self, values: Tensor) -> Tensor:
        """Expand a value per layer to its weights."""
        if self._layers is None:
            return values.repeat_interleave(torch.tensor(self.sizes, device=values.device))
        return values.index_select(0, self._layers)

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute `log(s_l / std) + (std^2 + mean^2) / (2 s_l^2) - 1/2`, with the variances as constants."""
        var = self.spread(self.variances(mean.detach(), std.detach()))
        return 0.5 * ((mean * mean + std * std) / var - 1 + var.log()) - std.log()

    def total_kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute `sum_l n_l log s_l - sum log std`: the squares cancel at the optimal variances."""
        counts = (
            torch.tensor(self.sizes, device=mean.device)
            if self._layers is None
            else torch.bincount(self._layers, minlength=len(self.sizes))
        )
        wide = wide_type(std)
        logs = self.variances(mean, std).to(wide).log()
        return (0.5 * (counts * logs).sum() - std.log().sum().to(wide)).to(std.dtype)

    def raw_kl(self, mean: Tensor, rho: Tensor, std: Tensor) -> Tensor:
        """Compute `total_kl` with gradients of mean and rho, in fewer passes over the weights."""
        if self._layers is not None:
            return super().raw_kl(mean, rho, std)
        return NormalKL.apply(mean, rho, std, self.sizes, None)  # type: ignore[no-any-return]

    def take(self, index: Tensor) -> Prior:
        """Return the prior of the chosen weights, each with its layer."""
        ends = torch.tensor(self.sizes, device=index.device).cumsum(0)
        return Empirical(self.sizes, torch.bucketize(index.long(), ends, right=True))


class LogUniform(Prior):
    """The improper prior p(|w|) ~ 1 / |w| of variational dropout, by the approximation of Molchanov et al. 2017."""

    name = "log-uniform"

    def kl(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute `k1 - k1 sigmoid(k2 + k3 log alpha) + log(1 + 1/alpha) / 2`, alpha = std^2 / mean^2 (Eq. 14)."""
        tiny = torch.finfo(mean.dtype).tiny
        log_alpha = 2 * (std.log() - mean.abs().clamp(min=tiny).log())
        return 0.63576 * torch.sigmoid(-(1.87320 + 1.48695 * log_alpha)) + 0.5 * nn.functional.softplus(-log_alpha)


def restore(name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Prior:
    """Return the prior that `name`, `config()` and the module's tensors describe."""
    return PRIORS[name](**config, **tensors)
