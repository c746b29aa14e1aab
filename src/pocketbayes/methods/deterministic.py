"""The deterministic network: maximum a posteriori, with weight decay as its prior."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from pocketbayes.methods.base import Method, Start
from pocketbayes.network import Network
from pocketbayes.posteriors import Point


@dataclass(frozen=True, kw_only=True)
class Deterministic(Method):
    """min NLL: Point x mean."""

    name = "map"

    def init(self, model: nn.Module) -> Network:
        """The model's own weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        point = Point(start.layout, start.mean)
        return Network(start.model, point, likelihood=start.likelihood, propagation="mean")
