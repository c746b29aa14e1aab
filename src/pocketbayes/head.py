"""Networks whose only random layer makes the output: what comes before it is the same in every pass, and runs once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.gradients import Use, tapped_pass
from pocketbayes.network import Network
from pocketbayes.posteriors import Posterior


@dataclass(frozen=True)
class Head:
    """The last layer of a network and the features that it gets for one batch."""

    posterior: Posterior
    use: Use

    @classmethod
    def of(cls, network: Network, x: Tensor) -> Head | None:
        """The head under weight samples, or None: other layers are random too, or the model draws noise of its own."""
        posterior, layout = network.posterior, network.layout
        compact = type(posterior).compact_weights is not Posterior.compact_weights
        if network.propagation != "sample" or compact:
            return None
        slots = posterior.random_slots()
        if len({layout.slots[number].name.rpartition(".")[0] for number in slots}) != 1:
            return None
        before = _generator_state(network)
        output, record = tapped_pass(network.model, layout, posterior.held_moments()[0], x, slots)
        (use, *more) = record or [None]
        if use is None or more or use.op is not F.linear or use.output is not output:
            return None
        changed = use.version != use.call.input._version or not torch.equal(before, _generator_state(network))
        return None if changed else cls(posterior, use)

    def draw(self) -> Tensor:
        """The output of one pass: bit for bit that of the whole network."""
        call, drawn = self.use.call, self.posterior.layout.views(self.posterior.sample())
        weight = call.weight if self.use.weight is None else drawn[self.use.weight]
        bias = call.bias if self.use.bias is None else drawn[self.use.bias]
        return F.linear(call.input, weight, bias)


def _generator_state(network: Network) -> Tensor:
    device = network.device
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
