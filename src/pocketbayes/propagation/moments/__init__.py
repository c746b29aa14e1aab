"""Moment propagation (VDP++): a rule per operation for mean and variance, and a refusal by name where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.base import Ask, Call, Ruled
from pocketbayes.propagation.moments import activations, arithmetic, attention, normalisation, pooling, shape
from pocketbayes.propagation.moments.exact import EXACT
from pocketbayes.propagation.moments.table import MomentRules, NoRuleError, register_moment_rule

if TYPE_CHECKING:
    from pocketbayes.network import Network

MOMENTS = MomentRules("moments")
MOMENTS_EXACT = MomentRules("moments-exact", EXACT)
"""ReLU, leaky ReLU and GELU with the moments of a Gaussian input in place of the first-order ones."""


class Moments(Ruled):
    """Mean and variance of every activation, in one pass; noise in the inputs goes along."""

    name = "moments"
    table: ClassVar[RuleTable] = MOMENTS

    def run(self, net: Network, x: Any, ask: Ask) -> Any:
        """Run the model with Gaussian weights, and Gaussian inputs where the network knows their noise."""
        weights = self.weights(net, x, ask)
        if net.input_var:
            args, kwargs = Call.unpack(x)
            x = Call((self.table.noisy(args[0], net.input_var), *args[1:]), kwargs)
        return net.run_with(weights, x)


class MomentsExact(Moments):
    """The same with the exact moments of ReLU, leaky ReLU and GELU."""

    name = "moments-exact"
    table = MOMENTS_EXACT


__all__ = [
    "MOMENTS",
    "MOMENTS_EXACT",
    "MomentRules",
    "Moments",
    "MomentsExact",
    "NoRuleError",
    "activations",
    "arithmetic",
    "attention",
    "normalisation",
    "pooling",
    "register_moment_rule",
    "shape",
]
