"""A propagation that draws weights as mean + std * e, with random signs e instead of normal noise.

Only `run`, one pass of the network, is required. Random signs have the mean and variance of normal noise, but no tails.
Run it: python examples/extend/my_propagation.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pocketbayes as pb


class Signs(pb.Propagation):
    """Weights one std above or below their means, at random."""

    name = "signs"
    draws = True

    def run(self, net: pb.Network, x: Any, ask: Any) -> Tensor:
        """Run one pass; torch's random functions follow the prediction's seed here."""
        mean, std = net.posterior.moments()
        step = std * torch.randint(0, 2, mean.shape, device=mean.device).mul(2).sub(1)
        return net.run_at(mean + step, x)


def main() -> None:
    torch.manual_seed(0)
    net = pb.bayesianize(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)), pb.MeanFieldVI(std_init=0.05))
    net.likelihood = pb.GaussianNoise(noise=0.1)
    x = torch.randn(3, 4)
    for propagation in ("signs", "sample"):
        answer = pb.predict(net, x, samples=500, propagation=propagation)
        print(f"{propagation}: epistemic std {[round(value, 3) for value in answer.epistemic.flatten().tolist()]}")


if __name__ == "__main__":
    main()
