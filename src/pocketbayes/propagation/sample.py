"""Weight samples: each pass draws all weights once and runs the model as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

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
        else:
            yield from super().passes(net, x, ask, seeds)
