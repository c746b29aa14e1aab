"""Independent Gaussian weights: a mean and a std each."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.posteriors.base import Posterior, softplus_inverse
from pocketbayes.posteriors.coding import MEAN, raw_std
from pocketbayes.posteriors.fused import Draw, in_eager_mode, softplus
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior


class MeanField(Posterior):
    """Independent weights `w_i ~ N(mean_i, std_i^2)` with `std = softplus(rho)`."""

    name = "mean-field"
    tensors: ClassVar = {"mean": MEAN, "rho": raw_std("weights")}

    def __init__(self, layout: Layout, mean: Tensor, std: Tensor) -> None:
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())
        self.rho = nn.Parameter(softplus_inverse(std.detach()))
        self.derive()

    def derive(self) -> None:
        """Note whether all weights are random."""
        self._all_random = bool(self.rho.detach().min().exp() > 0)  # a std of 0 has no gradient and stays 0
        self._drawn_with: tuple[Tensor, Tensor] | None = None

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means and softplus(rho)."""
        if torch.is_grad_enabled() or not in_eager_mode():
            return self.mean, F.softplus(self.rho)
        return self.mean, softplus(self.rho)

    def kl(self, prior: Prior) -> Tensor:
        """Return the sum over the random weights; if all were random at the start, they still are."""
        if not self._all_random:
            return super().kl(prior)
        if self._trains():
            return prior.raw_kl(self.mean, self.rho, self._current_stds())
        return prior.total_kl(*self.moments())

    def _displaced(self, noise: Tensor | None) -> Tensor:
        if not self._trains() or (noise is not None and noise.requires_grad):
            return super()._displaced(noise)
        std = self._current_stds()
        if std.device.type == "cpu":  # on other devices the comparison would synchronise, and softplus is cheap
            self._drawn_with = std, self._state()
        return Draw.apply(self.mean, self.rho, std, self._noise(noise, self.mean))  # type: ignore[no-any-return]

    def _trains(self) -> bool:
        """Return whether only autograd needs the parameters' gradients."""
        wanted = torch.is_grad_enabled() and self.mean.requires_grad and self.rho.requires_grad
        return wanted and self._held is None and in_eager_mode()

    def _current_stds(self) -> Tensor:
        """Return softplus(rho) without gradients, reusing that of the last draw once if nothing has changed."""
        known, self._drawn_with = self._drawn_with, None
        if known is not None:
            std, state = known
            if (std.device, std.dtype) == (self.rho.device, self.rho.dtype) and torch.equal(state, self._state()):
                return std
        return softplus(self.rho.detach())

    def _state(self) -> Tensor:
        """Return a checksum of rho, which also detects changes that bypass torch's version counter."""
        rho = self.rho.detach()
        return torch.dot(rho, rho)
