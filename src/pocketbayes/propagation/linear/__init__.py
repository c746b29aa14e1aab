"""The delta method: the variance of the outputs, with all correlations, from one backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.model_call import Call
from pocketbayes.propagation.base import Ask, Propagation
from pocketbayes.propagation.linear.delta import linearise

if TYPE_CHECKING:
    from pocketbayes.network import Network


class Linear(Propagation):
    """The network linearised at its mean weights: a Gaussian output without sampling."""

    name = "linear"
    differentiable = False
    exports = False

    def run(self, net: Network, x: Any, ask: Ask) -> Any:
        """Run the model once forwards, and backwards once per variance that `ask.classes` requests."""
        values = (*x.args, *x.kwargs.values()) if isinstance(x, Call) else (x,)
        if len(values) != 1:
            raise UserError(f"propagation='linear' is for models of one input, not {len(values)}: use 'sample'")
        (value,) = values
        expansion = linearise(net.model, net.posterior, value, classes=ask.classes, draws=ask.samples, seed=ask.seed)
        return expansion.gaussian()
