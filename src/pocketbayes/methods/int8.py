"""A mean-field network with means and stds quantised to integers after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import DerivedMethod, Method, Stage, TrainingContext
from pocketbayes.methods.meanfield import MeanFieldVI
from pocketbayes.network import Net, Network
from pocketbayes.posteriors.quantized import Quantized, check_sigma_bits


@dataclass(frozen=True, kw_only=True)
class Int8(DerivedMethod):
    """A mean-field network with means and stds rounded to bytes (after Subedar et al. 2021).

    `mean = scale q`, `std = low + step s` per output channel.

    Mean-field VI is trained first, unless `fit` is given a Network with stds, which is quantised directly;
    `bayesianize` quantises without data. Departures: only weights are integers; activations, point parameters and
    arithmetic are floats, so that any architecture works.

    Attributes:
        sigma_bits: Bits per std: 8, 4, 2 or 1 (see `Quantized.quantize`).
        method: The mean-field method: a MeanFieldVI, or "bbb", "lrt", "flipout".
    """

    name = "int8"
    sigma_bits: int = 8
    method: Method | str = "lrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sigma_bits(self.sigma_bits)
        if not isinstance(self.base, MeanFieldVI):
            raise UserError(f"Int8 quantises mean-field networks: method must be a MeanFieldVI, not {self.method!r}")

    def init(self, model: nn.Module) -> Network:
        """Quantise the network's moments, or the initial ones of mean-field training."""
        network = self.base.init(model)
        assert isinstance(network, Network)
        return quantized(network, self.sigma_bits)

    def start(self, model: nn.Module) -> Net:
        """Return the mean-field network in floats."""
        return self.base.start(model)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return mean-field training followed by quantisation; a Network with stds is only quantised."""
        if isinstance(model, Network) and model.has_stds:
            return (Stage("quantize", epochs=0, end=self._end),)
        *first, last = self.base.stages(model)
        return [*(replace(s, method=self.base) for s in first), replace(last, method=self.base, end=self._end)]

    def _end(self, net: Net, run: TrainingContext) -> Network:
        assert isinstance(net, Network)
        return quantized(net, self.sigma_bits)


def quantized(network: Network, sigma_bits: int = 8) -> Network:
    """Quantise the moments of a network's posterior; the result takes over its model."""
    with torch.no_grad():
        mean, std = network.posterior.moments()
    posterior = Quantized.quantize(network.layout, mean, std, sigma_bits)
    return network.with_posterior(posterior, propagation="sample")
