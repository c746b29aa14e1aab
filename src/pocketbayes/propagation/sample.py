"""Weight samples: each pass draws all weights once and runs the model as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pocketbayes.base.randomness import Randomness
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.base import Ask, WeightPropagation, draw_noise
from pocketbayes.propagation.head import Head
from pocketbayes.propagation.local import LOCAL

if TYPE_CHECKING:
    from pocketbayes.network import Network


class Sample(WeightPropagation):
    """One draw of the weights per pass, shared by all examples."""

    name = "sample"
    draws = True

    def rules(self, posterior: Posterior) -> RuleTable:
        """Return the table that knows which operations are linear in a weight: these take sparse matrices."""
        return LOCAL

    def weights(self, net: Network, x: Any, ask: Ask) -> list[Tensor]:
        """Return one draw."""
        return net.posterior.sample_slots(draw_noise(net.posterior, ask), self.matrices(net, x))

    def passes(self, net: Network, x: ModelInput, ask: Ask, seeds: Sequence[int]) -> Iterator[Tensor]:
        """Yield the outputs of one draw per seed; a network whose last layer alone is random runs the rest once."""
        if len(seeds) > 1 and (head := Head.find(net, x)) is not None:
            yield from head.draws(seeds)
            return
        for seed, noise in zip(seeds, KEPT.noise(net, seeds)):
            yield self._in_parts(net, x, replace(ask, noise=noise, randomness=Randomness(seed)))[None]


class KeptNoise:
    """The noise of the passes that were asked for last, for the next batch and the next prediction.

    Pass s draws the same weights for every batch, and for a perceptron drawing the numbers takes longer than the pass.
    They are kept from the second time on that the same passes are asked for, within `MAX_KEPT`. Noise depends on the
    seed alone: what happens to the network does not matter.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], dict[int, Tensor]] = ((), {})  # replaced as one: threads may ask at once

    def noise(self, net: Network, seeds: Sequence[int]) -> Sequence[Tensor | None]:
        """Return the noise of each pass; None for a pass that is to draw its own."""
        size = net.posterior.noise_size
        # A model that draws numbers itself takes them from the generator of the pass after the noise.
        if size * len(seeds) > MAX_KEPT or not net.draws_nothing("sample"):
            return [None] * len(seeds)
        like = net.posterior.weight_means()
        asked = (type(net.posterior), size, like.dtype, like.device, *seeds)
        before, values = self._kept
        if asked != before:
            self._kept = (asked, {})
            return [None] * len(seeds)
        if not values:
            values = {seed: net.posterior.new_noise(Randomness(seed)) for seed in seeds}
            self._kept = (asked, values)
        return [values[seed] for seed in seeds]


MAX_KEPT = 2**23
"""Numbers that are kept: 32 MiB in single precision."""
KEPT = KeptNoise()
