"""A method in one file: Gaussian dropout as a posterior, `w ~ N(mean, (rate * |mean|)^2)` at the start.

Run it: python examples/extend/my_method.py
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

import pocketbayes as pb
from pocketbayes.methods import Method, Start
from pocketbayes.posteriors import MeanField


@dataclass(frozen=True, kw_only=True)
class RelativeNoise(Method):
    """Minimise E[NLL] under noise that is initially proportional to each weight.

    Attributes:
        rate: The ratio of std to |mean| at the start of training.
    """

    name = "relative-noise"
    rate: float = 0.1

    def init(self, model: nn.Module) -> pb.Network:
        """Build the network: choose a storage and a propagation."""
        start = Start.of(model, self.bayesian_bias, self.select)  # the selected weights, removed from the model
        storage = MeanField(start.layout, start.mean, self.rate * start.mean.abs() + 1e-6)
        return pb.Network(start.model, storage, likelihood=start.likelihood, propagation="sample")


def main() -> None:
    train, test = pb.data.load("digits", "train"), pb.data.load("digits", "test")
    model = pb.models.build("mlp", in_features=64, hidden=[32], out_features=10)
    net = pb.fit(RelativeNoise(rate=0.2), model, train, epochs=5, progress=False)
    print({name: round(value, 3) for name, value in pb.evaluate(net, test, samples=10).items()})


if __name__ == "__main__":
    main()
