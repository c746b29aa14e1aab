"""The delta method: the variance of the outputs, with all correlations, from one backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.propagation.base import Ask, Call, Propagation
from pocketbayes.propagation.linear.delta import Linearised, linearise

if TYPE_CHECKING:
    from pocketbayes.network import Network


class Linear(Propagation):
    """The network linearised at its mean weights: a Gaussian output without sampling."""

    name = "linear"
    differentiable = False
    exports = False

    def run(self, net: Network, x: Any, ask: Ask) -> Any:
        """Run the model once forwards, and backwards once per variance that `ask.classes` requests."""
        call = Call.unpack(x)
        values = (*call.args, *call.kwargs.values())
        if len(values) != 1:
            raise UserError(f"propagation='linear' is for models of one input, not {len(values)}: use 'sample'")
        return self.expand(net, values[0], ask).gaussian()

    def expand(self, net: Network, x: Tensor, ask: Ask) -> Linearised:
        """Return the expansion itself."""
        classes, draws = ask.classes, ask.samples
        return linearise(net.model, net.posterior, x, classes=classes, draws=draws, seed=ask.seed)


__all__ = ["Linear", "Linearised", "linearise"]
