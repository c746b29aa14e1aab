"""The deterministic network: maximum a posteriori, with weight decay as its prior."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from pocketbayes.base.model_lock import copy_model
from pocketbayes.methods.base import Method, Start
from pocketbayes.network import Network
from pocketbayes.posteriors import Point


@dataclass(frozen=True, kw_only=True)
class Deterministic(Method):
    """A deterministic network trained by maximum likelihood, with no uncertainty in its weights."""

    name = "map"

    def init(self, model: nn.Module) -> Network:
        """Return a network with the model's weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        return start.network(Point(start.layout, start.mean), propagation="mean")


def deterministic_start(method: Method, model: nn.Module) -> Network:
    """Return a copy of a given Network, or a point estimate with the model's weights, as the start of a first stage."""
    if isinstance(model, Network):
        return copy_model(model)
    return Deterministic(bayesian_bias=method.bayesian_bias, select=method.select).init(model)
