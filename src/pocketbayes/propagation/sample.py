"""The unchanged model at the mean of the weights, or at one draw of them per pass.

If only the last layer is random, the layers before it run once for all passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.base.randomness import Randomness
from pocketbayes.base.seeds import pass_seed
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.base import Ask, WeightPropagation
from pocketbayes.propagation.linear.taps import Use, tapped_pass
from pocketbayes.propagation.local import LOCAL

if TYPE_CHECKING:
    from pocketbayes.network import Network

_AT_ONCE = 1 << 22
"""Largest number of values in memory: 16 MB in single precision."""


@dataclass(frozen=True)
class Head:
    """The last layer of a network with its input features for one batch."""

    posterior: Posterior
    use: Use

    @classmethod
    def find(cls, network: Network, x: ModelInput) -> Head | None:
        """Return the head, or None if other layers are random or the model draws noise itself."""
        posterior, layout = network.posterior, network.layout
        if posterior.matrix_slots():
            return None
        slots = posterior.random_slots()
        if len({layout.slots[number].name.rpartition(".")[0] for number in slots}) != 1:
            return None
        with Randomness(0).redirected() as redirected:
            output, record = tapped_pass(network.model, layout, posterior.weight_means(), x, slots)
        (use, *more) = record or [None]
        if use is None or more or use.op is not F.linear or use.weight is None or use.output is not output:
            return None
        changed = use.version != use.call.input._version
        return None if changed or redirected.drew else cls(posterior, use)

    def draws(self, seeds: Sequence[int]) -> Iterator[Tensor]:
        """Yield the outputs (s, b, ...) of one pass per seed, equal to those of the whole network, many at a time."""
        numbers, layout = (self.use.weight, self.use.bias), self.posterior.layout
        slots = [layout.slots[number] for number in numbers if number is not None]
        start, stop = min(slot.start for slot in slots), max(slot.stop for slot in slots)
        features = self.use.call.input
        outputs = features.numel() // features.shape[-1] * slots[0].shape[0]
        at_once = max(1, _AT_ONCE // max(stop - start, outputs, self.posterior.noise_size))
        for first in range(0, len(seeds), at_once):
            drawn = self.posterior.draws(self._noise(seeds[first : first + at_once]), start, stop)
            weight, *biases = (drawn[:, slot.start - start : slot.stop - start] for slot in slots)
            yield self._layers(weight.unflatten(1, slots[0].shape), biases[0] if biases else self.use.call.bias)

    def _layers(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply layers (s, out, in) to the features in one product, with a common bias or one per layer."""
        product = F.linear(self.use.call.input, weight.flatten(0, 1))
        output: Tensor = product.unflatten(-1, weight.shape[:2]).movedim(-2, 0)
        if bias is not None:
            output = output + (bias if bias.ndim == 1 else bias.view(len(bias), *(1,) * (output.ndim - 2), -1))
        return output

    def _noise(self, seeds: Sequence[int]) -> Tensor:
        """Return the noise of each pass, drawn from its seed."""
        mean = self.posterior.weight_means()
        noise = mean.new_empty(len(seeds), self.posterior.noise_size)
        generator = torch.Generator(mean.device)
        for row, seed in zip(noise, seeds):
            row.normal_(generator=generator.manual_seed(seed))
        return noise


class PlainWeights(WeightPropagation):
    """Propagations with plain or sparse weights."""

    def rules(self, posterior: Posterior) -> RuleTable:
        """Return the table of linear operations, which accept sparse matrices."""
        return LOCAL


class Mean(PlainWeights):
    """One pass with the mean of every weight: no epistemic uncertainty."""

    name = "mean"

    def weights(self, net: Network, x: Any, ask: Ask) -> list[Tensor]:
        """Return the means."""
        return net.posterior.mean_slots(self.matrices(net, x))


class Sample(PlainWeights):
    """One draw of the weights per pass, shared by all examples."""

    name = "sample"
    draws = True

    def weights(self, net: Network, x: Any, ask: Ask) -> list[Tensor]:
        """Return one draw."""
        matrices = self.matrices(net, x)
        noise = net.posterior.new_noise(ask.randomness) if ask.noise is None else ask.noise
        return net.posterior.sample_slots(noise, matrices)

    def passes(self, net: Network, x: ModelInput, ask: Ask, numbers: Sequence[int]) -> Iterator[Tensor]:
        """Yield the outputs of one draw per pass; if only the last layer is random, the others run once."""
        if len(numbers) > 1 and (head := Head.find(net, x)) is not None:
            yield from head.draws([pass_seed(ask.seed, number) for number in numbers])
            return
        for number, noise in zip(numbers, KEPT.noise(net, ask.seed, numbers)):
            yield self._in_parts(net, x, replace(ask, noise=noise), number)[None]


class KeptNoise:
    """A cache of the last passes' noise for the next batch or prediction.

    A pass draws the same weights for every batch, and in a small MLP drawing takes longer than the pass. Noise is
    cached when the same passes are requested a second time, up to `MAX_KEPT` numbers. It depends on the seed only, so
    changes of the network do not invalidate it.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], dict[int, Tensor]] = ((), {})  # replaced as a whole, for thread safety

    def noise(self, net: Network, seed: int, numbers: Sequence[int]) -> Sequence[Tensor | None]:
        """Return the noise of each numbered pass; None for a pass that draws its own."""
        size = net.posterior.noise_size
        # A model that draws random numbers itself uses the pass's generator after the noise.
        if size * len(numbers) > MAX_KEPT or not net.draws_nothing("sample"):
            return [None] * len(numbers)
        seeds = [pass_seed(seed, number) for number in numbers]
        like = net.posterior.weight_means()
        key = (type(net.posterior), size, like.dtype, like.device, *seeds)
        before, values = self._kept
        if key != before:
            self._kept = (key, {})
            return [None] * len(seeds)
        if not values:
            values = {seed: net.posterior.new_noise(Randomness(seed)) for seed in seeds}
            self._kept = (key, values)
        return [values[seed] for seed in seeds]


MAX_KEPT = 2**23
"""Largest number of cached values: 32 MiB in single precision."""
KEPT = KeptNoise()
