"""A propagation of one's own: weights at mean + std * e, with random signs e in place of normal noise.

`run` is its one duty: one pass of the network. Signs have the mean and the variance of normal noise and no tails.
Run it: python examples/extend/my_propagation.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pocketbayes as pb


class Signs(pb.Propagation):
    """A random corner of the box of one std about the means."""

    name = "signs"
    draws = True

    def run(self, net: pb.Network, x: Any, ask: Any) -> Tensor:
        """Run one pass; what torch draws in it follows from the prediction's seed."""
        mean, std = net.posterior.moments()
        step = std * torch.randint(0, 2, mean.shape, device=mean.device).mul(2).sub(1)
        return net.run_at(mean + step, x)


def main() -> None:
    torch.manual_seed(0)
    net = pb.bayesianize(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)), pb.MeanFieldVI(std_init=0.05))
    net.likelihood = pb.GaussianNoise(noise=0.1)
    x = torch.randn(3, 4)
    for way in ("signs", "sample"):
        answer = pb.predict(net, x, samples=500, propagation=way)
        print(f"{way}: epistemic std {[round(value, 3) for value in answer.epistemic.flatten().tolist()]}")


if __name__ == "__main__":
    main()
