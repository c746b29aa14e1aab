"""Coding of a network's weights by one codebook with rate, distortion and error feedback."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pocketbayes.base.model_lock import copy_model
from pocketbayes.files.packing import Precision
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.plane.codes import (
    Codebook,
    PlaneCodebook,
    entropy_bits,
    fit_codebook,
    fit_plane_codebook,
    importance_of,
)
from pocketbayes.plane.trellis import LARGEST_HALF, Search, TrellisCodebook, TrellisSearch, fit_trellis
from pocketbayes.posteriors import Posterior, from_codes
from pocketbayes.posteriors.coded import StdUnits, Units, unit_counts, unit_sizes
from pocketbayes.ship.compression.feedback import Greedy, code_with_feedback

CODED_PRECISION = Precision("bfloat16", "bfloat16", "bfloat16")
"""The precision of files of coded networks; lossless, since `code` has rounded the values to it."""
POINT_BITS = 5
"""Mantissa bits of biases, normalisation and scales: the error, at most 1.6 %, is far below that of two-bit weights."""
BFLOAT16_BITS = 7
FINE_LAMBDA = 0.02
"""Lambda below which points keep all bits of bfloat16: their rounding would cost more than that of the weights."""
ESTIMATE_WEIGHTS = 1 << 16
"""Weights per layer from which a size is estimated."""
ESTIMATE_FITTED = 1 << 18
"""Weights to which the codebook of an estimate is fitted."""

SENSITIVITY_POWER = 0.5
"""Power of a layer's sensitivity in its resolution. 1 would be optimal if layers' errors were small and independent;
at two to four bits per weight they are not, and 0.5 was better for networks with and without depthwise convolutions."""

Shares = Sequence[Tensor | None]
AnyCodebook = Codebook | PlaneCodebook | TrellisCodebook


@dataclass(frozen=True)
class Recipe:
    """The settings of a coding.

    Attributes:
        lam: The squared distance per bit, relative to a typical layer's variance; large for small files.
        units: The scaling of the codebook: by network, layer or filter.
        std_units: The storage of stds: per layer or filter, per code, or none.
        balanced: Whether layers or filters are scaled by their sensitivity too, so that sensitive layers take more
            bits.
        trellis: Whether two mirrored codebooks take turns. Codes in the plane of means and stds always have one.
    """

    lam: float
    units: Units = "network"
    std_units: StdUnits = "none"
    balanced: bool = False
    trellis: bool = True

    @property
    def point_bits(self) -> int:
        """Mantissa bits of biases and normalisation."""
        return BFLOAT16_BITS if self.lam < FINE_LAMBDA else POINT_BITS


@dataclass(frozen=True)
class Measured:
    """Measurements of a network on calibration data, which its coding uses.

    Attributes:
        shares: The result of `error_shares`, or None for no feedback.
        sensitivity: The result of `layer_sensitivity`.
    """

    shares: Shares | None = None
    sensitivity: Tensor | None = None


UNMEASURED = Measured()


def can_be_coded(net: Net) -> bool:
    """Return whether means and stds determine the posterior."""
    posteriors = [network.posterior for network in members(net)]
    return all((p.independent or p.noise_size == 0) and not p.drops_units for p in posteriors)


@dataclass(frozen=True)
class Result:
    """A coded network and the codebook of all its members."""

    net: Net
    codebook: AnyCodebook


def code(net: Net, recipe: Recipe, measured: Sequence[Measured] = ()) -> Result:
    """Code the weights of a network; the members of a mixture share one codebook.

    Args:
        net: A network or mixture.
        recipe: The settings of the coding.
        measured: Measurements of each member; without them, errors are not fed back.
    """
    with torch.no_grad():
        weights = weights_of(net, recipe, measured)
        codebook = codebook_of(weights, recipe)
        made = [own.build(codebook, own.code(codebook)[0]) for own in weights]
    return Result(Mixture(made, net.weights) if isinstance(net, Mixture) else made[0], codebook)


def weights_of(net: Net, recipe: Recipe, measured: Sequence[Measured] = ()) -> list[Weights]:
    """Return the weights of each member in the units of a recipe."""
    networks = members(net)
    return [
        Weights.of(network, recipe, own) for network, own in zip(networks, measured or [UNMEASURED] * len(networks))
    ]


def codebook_of(weights: Sequence[Weights], recipe: Recipe) -> AnyCodebook:
    """Fit one codebook to the weights of all members, rounded to the file's precision."""
    return _rounded(_fit(weights, recipe))


def _fit(weights: Sequence[Weights], recipe: Recipe, most: int | None = None) -> AnyCodebook:
    """Fit one codebook to the weights of all members, or to a sample of at most `most`."""
    means = torch.cat([own.scaled for own in weights])
    stride = 1 if most is None else max(1, -(-len(means) // most))
    lam = recipe.lam * _typical_variance(weights) / max(float(means.square().mean()), 1e-30) if len(means) else 1.0
    if recipe.std_units != "code":
        codebook = fit_trellis(means[::stride], lam) if recipe.trellis else None
        return fit_codebook(means[::stride], lam) if codebook is None or codebook.half > LARGEST_HALF else codebook
    stds, importance = (torch.cat(each) for each in zip(*((own.scaled_std, own.importance) for own in weights)))
    return fit_plane_codebook(means[::stride], stds[::stride], importance[::stride], lam)


def _typical_variance(weights: Sequence[Weights]) -> float:
    """Return the geometric mean over weights of their layer's variance, in units of the codebook.

    In this unit, the same lambda gives about the same bits per weight for any network.
    """
    variances = [(part.numel(), float(part.square().mean())) for own in weights for part in own.layers if part.numel()]
    positive = [(size, variance) for size, variance in variances if variance > 0]
    total = sum(size for size, _ in positive)
    return math.exp(sum(size * math.log(variance) for size, variance in positive) / total) if total else 1.0


def _rounded(codebook: AnyCodebook) -> AnyCodebook:
    """Round a codebook to the file's precision."""
    centres = round_mantissa(codebook.centres, BFLOAT16_BITS)
    if isinstance(codebook, PlaneCodebook):
        return replace(codebook, centres=centres, stds=round_mantissa(codebook.stds, POINT_BITS))
    return replace(codebook, centres=centres)


def round_mantissa(values: Tensor, bits: int) -> Tensor:
    """Round floats to a number of mantissa bits, which an entropy coder then stores in fewer bytes."""
    fraction, exponent = torch.frexp(values)
    scale = 2.0 ** (bits + 1)
    return torch.ldexp((fraction * scale).round() / scale, exponent)


@dataclass(frozen=True)
class Weights:
    """The weights of a network in the units of a recipe.

    Attributes:
        network: The network.
        recipe: The settings of the coding.
        shares: For each slot, the shares of errors that later weights take (see `error_shares`).
        mean: The means, (n,).
        std: The stds, (n,).
        scale: The scale of each unit.
        factor: The scale of each weight's unit, (n,); 1 where that is 0.
    """

    network: Network
    recipe: Recipe
    shares: Shares
    mean: Tensor
    std: Tensor
    scale: Tensor
    factor: Tensor

    @classmethod
    def of(cls, network: Network, recipe: Recipe, measured: Measured = UNMEASURED) -> Weights:
        """Read the weights of a network and measure their units."""
        mean, std = (moment.detach() for moment in network.posterior.moments())
        sizes = unit_sizes(network.layout, recipe.units)
        scale = mean.new_ones(1) if recipe.units == "network" else _root_mean_square(mean, sizes)
        if recipe.balanced and recipe.units != "network" and measured.sensitivity is not None:
            counts = unit_counts(network.layout, recipe.units)
            sensitivity = measured.sensitivity.repeat_interleave(torch.tensor(counts, device=mean.device))
            scale = scale / sensitivity**SENSITIVITY_POWER
        scale = round_mantissa(scale, POINT_BITS)
        factor = torch.repeat_interleave(torch.where(scale > 0, scale, 1), torch.tensor(sizes, device=mean.device))
        shares = measured.shares or [None] * len(network.layout)
        return cls(network, recipe, shares, mean, std, scale, factor)

    @cached_property
    def scaled(self) -> Tensor:
        """The means in units of the codebook."""
        return self.mean / self.factor

    @property
    def layers(self) -> list[Tensor]:
        """The means in units of the codebook, layer by layer."""
        return self.network.layout.views(self.scaled)

    @cached_property
    def scaled_std(self) -> Tensor:
        """The stds in units of the codebook."""
        return self.std / self.factor

    @cached_property
    def importance(self) -> Tensor:
        """The factor of each weight's distance from its code."""
        return importance_of(self.scaled_std)

    def choose(self, codebook: Codebook | PlaneCodebook, values: Tensor, places: Tensor) -> Tensor:
        """Return the codes of the weights at `places`, with these values in units of the codebook."""
        if isinstance(codebook, Codebook):
            return codebook.assign(values)
        return codebook.assign(values, self.scaled_std[places], self.importance[places])

    def search(self, codebook: AnyCodebook, start: int) -> Search:
        """Return the search for the codes of a slot that starts at this position."""
        if isinstance(codebook, TrellisCodebook):
            return TrellisSearch(codebook, lambda places: self.factor[start + places])

        def assign(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
            factor = self.factor[start + places]
            codes = self.choose(codebook, values / factor, start + places)
            return codes, codebook.centres[codes] * factor

        return Greedy(assign)

    def code(
        self,
        codebook: AnyCodebook,
        values: Tensor | None = None,
        share: tuple[float, float] = (0.0, 1.0),
        index: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Code the weights with error feedback.

        Args:
            codebook: The codebook.
            values: Values (n,) to code instead of the means; columns before `share` are unchanged.
            share: The range of columns of each slot to code, as fractions.
            index: The codes (n,) so far.

        Returns:
            Codes (n,), and the values of the weights: decoded, or with the errors fed back where there is no code yet.
        """
        layout = self.network.layout
        whole = torch.full(self.mean.shape, -1, device=self.mean.device) if index is None else index
        parts = zip(
            layout.slots, layout.views(self.mean if values is None else values), self.shares, layout.views(whole)
        )
        found = [
            code_with_feedback(weight, shares, self.search(codebook, slot.start), share, known)
            for slot, weight, shares, known in parts
        ]
        codes, coded = (torch.cat([part.flatten() for part in each]) for each in zip(*found))
        return codes, coded

    def build(self, codebook: AnyCodebook, index: Tensor) -> Network:
        """Return a copy of the network with these codes, without unused entries of the codebook."""
        if isinstance(codebook, TrellisCodebook):
            codebook, index = codebook.trim(index)
            codes = torch.arange(len(codebook), device=index.device)
        else:
            codes, index = torch.unique(index, return_inverse=True)
        units, std_units = self.recipe.units, self.recipe.std_units
        std = codebook.stds[codes] if isinstance(codebook, PlaneCodebook) else None
        if std_units in ("layer", "filter"):
            std = round_mantissa(_root_mean_square(self.std, unit_sizes(self.network.layout, std_units)), POINT_BITS)
        posterior = from_codes(
            self.network.layout, index, codebook.centres[codes], self.scale, std, units=units, std_units=std_units
        )
        return with_posterior(self.network, posterior)


def _root_mean_square(values: Tensor, sizes: Sequence[int]) -> Tensor:
    which = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(values.device)
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=values.device).index_add_(0, which, values.double() ** 2)
    return (sums / torch.tensor(sizes, device=values.device).clamp(min=1)).sqrt().to(values.dtype)


def with_posterior(network: Network, posterior: Posterior) -> Network:
    """Copy the network with another posterior."""
    model = copy_model(network.model)
    propagation = network.propagation if posterior.noise_size else "mean"
    made = Network(
        model,
        posterior,
        prior=network.prior,
        likelihood=copy.deepcopy(network.likelihood),
        propagation=propagation,
        input_var=network.input_var,
    )
    made.method, made.info, made.calibration = network.method, network.info, network.calibration
    return made.eval()


@torch.no_grad()
def round_points(net: Net, bits: int = POINT_BITS) -> None:
    """Round parameters and buffers outside the posteriors to so many mantissa bits, in place."""
    for network in members(net):
        for tensor in [*network.model.parameters(), *network.model.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(round_mantissa(tensor, bits))


@torch.no_grad()
def estimate_bytes(net: Net, recipe: Recipe, measured: Sequence[Measured] = ()) -> float:
    """Estimate the bytes of codes and scales from the entropy of each layer's codes, without feedback or trellis."""
    weights = weights_of(net, recipe, measured)
    codebook = _fit(weights, replace(recipe, trellis=False), ESTIMATE_FITTED)
    assert not isinstance(codebook, TrellisCodebook)
    total = 0.0
    for own in weights:
        for slot in own.network.layout.slots:
            some = torch.arange(slot.start, slot.stop, max(1, slot.size // ESTIMATE_WEIGHTS), device=own.mean.device)
            codes = own.choose(codebook, own.scaled[some], some)
            total += slot.size * entropy_bits(torch.bincount(codes)) / 8
        total += len(own.scale)
    return total
