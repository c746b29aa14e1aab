"""The unchanged model at the mean of the weights, or at one draw of them per pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pocketbayes.base.randomness import Randomness
from pocketbayes.base.seeds import pass_seed
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.base import Ask, WeightPropagation
from pocketbayes.propagation.head import Head
from pocketbayes.propagation.local import LOCAL

if TYPE_CHECKING:
    from pocketbayes.network import Network


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
        seeds = [pass_seed(ask.seed, number) for number in numbers]
        if len(seeds) > 1 and (head := Head.find(net, x)) is not None:
            yield from head.draws(seeds)
            return
        for number, noise in zip(numbers, KEPT.noise(net, seeds)):
            yield self._in_parts(net, x, replace(ask, noise=noise), number)[None]


class KeptNoise:
    """A cache of the last passes' noise for the next batch or prediction.

    A pass draws the same weights for every batch, and in a small MLP drawing takes longer than the pass. Noise is
    cached when the same passes are requested a second time, up to `MAX_KEPT` numbers. It depends on the seed only, so
    changes of the network do not invalidate it.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], dict[int, Tensor]] = ((), {})  # replaced as a whole, for thread safety

    def noise(self, net: Network, seeds: Sequence[int]) -> Sequence[Tensor | None]:
        """Return the noise of each pass; None for a pass that draws its own."""
        size = net.posterior.noise_size
        # A model that draws random numbers itself uses the pass's generator after the noise.
        if size * len(seeds) > MAX_KEPT or not net.draws_nothing("sample"):
            return [None] * len(seeds)
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
