"""A network's weights as codes: one codebook, chosen by rate and distortion, errors fed back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.files.packing import Precision
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.plane.codes import Codebook, entropy, fit_codebook
from pocketbayes.posteriors import Coded
from pocketbayes.posteriors.coded import StdUnits, Units, unit_sizes
from pocketbayes.ship.compression.feedback import code_with_feedback

CODED_PRECISION = Precision("bfloat16", "bfloat16", "bfloat16")
"""Exact for a coded network: `code` has rounded what a file keeps in this precision."""
POINT_BITS = 5
"""Mantissa bits of biases, normalisation and scales: an error of 1.6 % at most, far below that of two-bit weights."""
BFLOAT16_BITS = 7
ESTIMATE_WEIGHTS = 1 << 16
"""Weights per layer that an estimate of size is made from."""

Moments = Sequence[Tensor | None]


@dataclass(frozen=True)
class Recipe:
    """How a network is coded.

    Attributes:
        lam: The squared distance, relative to the weights' variance, that a bit is worth: large for small files.
        units: What the codebook is scaled to: the whole network, each layer, or each filter.
        std_units: Where stds are kept: for each layer or filter, with each code, or nowhere.
    """

    lam: float
    units: Units = "network"
    std_units: StdUnits = "none"


def code(net: Net, recipe: Recipe, moments: Sequence[Moments | None]) -> Net:
    """Return the network with coded weights; the members of a mixture share one codebook.

    Args:
        net: A network or mixture.
        recipe: How to code it.
        moments: For each member what `input_moments` found, or None: then no error is fed back.
    """
    networks = members(net)
    with torch.no_grad():
        plans = [_Plan.of(network, recipe) for network in networks]
        codebook = fit_codebook(torch.cat([plan.scaled() for plan in plans]), recipe.lam)
        codebook = Codebook(round_mantissa(codebook.centres, BFLOAT16_BITS), codebook.bits, codebook.lam)
        coded = [
            _with_posterior(network, plan.posterior(codebook, own or [None] * len(network.layout)))
            for network, plan, own in zip(networks, plans, moments)
        ]
    return Mixture(coded) if isinstance(net, Mixture) else coded[0]


def round_mantissa(values: Tensor, bits: int) -> Tensor:
    """Round floats to so many bits behind the leading one, which an entropy coder then need not keep."""
    fraction, exponent = torch.frexp(values)
    scale = 2.0 ** (bits + 1)
    return torch.ldexp((fraction * scale).round() / scale, exponent)


@dataclass(frozen=True)
class _Plan:
    """A network's weights in the units of a recipe."""

    network: Network
    recipe: Recipe
    mean: Tensor
    std: Tensor
    scale: Tensor

    @classmethod
    def of(cls, network: Network, recipe: Recipe) -> _Plan:
        mean, std = (moment.detach() for moment in network.posterior.moments())
        if recipe.units == "network":
            return cls(network, recipe, mean, std, mean.new_ones(1))
        scale = _root_mean_square(mean, unit_sizes(network.layout, recipe.units))
        return cls(network, recipe, mean, std, round_mantissa(scale, POINT_BITS))

    def spread(self) -> Tensor:
        """Return the scale of each weight, above 0."""
        sizes = torch.tensor(unit_sizes(self.network.layout, self.recipe.units), device=self.mean.device)
        return torch.repeat_interleave(torch.where(self.scale > 0, self.scale, 1), sizes)

    def scaled(self) -> Tensor:
        return self.mean / self.spread()

    def posterior(self, codebook: Codebook, moments: Moments) -> Coded:
        layout, scale = self.network.layout, self.spread()
        used, edges = codebook.boundaries()
        edges = edges.to(self.mean)
        index = []
        for slot, weight, own in zip(layout.slots, layout.views(self.mean), moments):
            unit = scale[slot.start : slot.stop]

            def assign(values: Tensor, places: Tensor, unit: Tensor = unit) -> tuple[Tensor, Tensor]:
                factor = unit[places]
                codes = used[torch.bucketize((values / factor).contiguous(), edges)]
                return codes, codebook.centres[codes] * factor

            index.append(code_with_feedback(weight, own, assign)[0].flatten())
        codes, kept = torch.unique(torch.cat(index), return_inverse=True)  # codes out of use vanish
        std = None
        if self.recipe.std_units in ("layer", "filter"):
            std = round_mantissa(_root_mean_square(self.std, unit_sizes(layout, self.recipe.std_units)), POINT_BITS)
        centres = codebook.centres[codes]
        units, std_units = self.recipe.units, self.recipe.std_units
        return Coded(layout, kept, centres, self.scale, std, units=units, std_units=std_units)


def _root_mean_square(values: Tensor, sizes: Sequence[int]) -> Tensor:
    which = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(values.device)
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=values.device).index_add_(0, which, values.double() ** 2)
    return (sums / torch.tensor(sizes, device=values.device).clamp(min=1)).sqrt().to(values.dtype)


def _with_posterior(network: Network, posterior: Coded) -> Network:
    """Copy the network with another posterior."""
    model = copy.deepcopy(network.model)
    propagation = network.propagation if posterior.std_units != "none" else "mean"
    made = Network(
        model,
        posterior,
        prior=network.prior,
        likelihood=copy.deepcopy(network.likelihood),
        propagation=propagation,
        input_var=network.input_var,
    )
    made.method, made.info = network.method, network.info
    return made.eval()


@torch.no_grad()
def round_points(net: Net) -> None:
    """Round parameters and buffers outside the posteriors to what a small file keeps, in place."""
    for network in members(net):
        for tensor in [*network.model.parameters(), *network.model.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(round_mantissa(tensor, POINT_BITS))


@torch.no_grad()
def estimate_bytes(net: Net, recipe: Recipe) -> float:
    """Estimate the bytes of codes and scales, by the entropy of each layer's codes without feedback."""
    plans = [_Plan.of(network, recipe) for network in members(net)]
    codebook = fit_codebook(torch.cat([plan.scaled() for plan in plans]), recipe.lam)
    total = 0.0
    for plan in plans:
        for part in plan.network.layout.views(plan.scaled()):
            some = part.flatten()[:: -(-part.numel() // ESTIMATE_WEIGHTS) or 1]
            total += part.numel() * entropy(torch.bincount(codebook.assign(some))) / 8
        total += len(plan.scale) if recipe.units != "network" else 0
    return total
