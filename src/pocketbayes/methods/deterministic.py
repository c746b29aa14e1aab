"""The deterministic network: maximum a posteriori, with weight decay as its prior."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from pocketbayes.methods.base import Method, Start
from pocketbayes.network import Network
from pocketbayes.posteriors import Point


@dataclass(frozen=True, kw_only=True)
class Deterministic(Method):
    """One value a weight, trained to the least NLL: no uncertainty but that of the output (Point x mean)."""

    name = "map"

    def init(self, model: nn.Module) -> Network:
        """Return the model's own weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        point = Point(start.layout, start.mean)
        return Network(start.model, point, likelihood=start.likelihood, propagation="mean")


def deterministic_start(method: Method, model: nn.Module) -> Network:
    """Return a copy of a given Network, or a point estimate at the model's weights, to start a first stage from."""
    if isinstance(model, Network):
        return copy.deepcopy(model)
    return Deterministic(bayesian_bias=method.bayesian_bias, select=method.select).init(model)
