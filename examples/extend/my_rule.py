"""A moment rule for an operation that pocketbayes does not know: sinc, to first order.

`mean = sinc(m)`, `var = v sinc'(m)^2`. Without the rule, moment propagation rejects the model and names the operation.
Run it: python examples/extend/my_rule.py
"""

from __future__ import annotations

import torch
from torch import nn

import pocketbayes as pb


class Wave(nn.Module):
    """A network with sinc as its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply one hidden layer."""
        return self.last(torch.special.sinc(self.first(x)))


def sinc(x: pb.Gaussian) -> pb.Gaussian:
    """Return the mean (`loc`) and `variance` after the operation."""
    m = x.loc
    angle = torch.pi * m
    slope = torch.where(m.abs() < 1e-4, torch.zeros_like(m), (torch.cos(angle) - torch.sinc(m)) / m)
    return pb.Gaussian(torch.sinc(m), x.variance * slope.square())


def main() -> None:
    torch.manual_seed(0)
    net = pb.bayesianize(Wave(), pb.MeanFieldVI(std_init=0.02))
    net.likelihood = pb.GaussianNoise(noise=0.1)
    x = torch.randn(3, 4)
    try:
        pb.predict(net, x, propagation="moments")
    except pb.UserError as error:
        print(error)
    pb.register_moment_rule(torch.special.sinc, sinc)
    moments = pb.predict(net, x, propagation="moments")
    sampled = pb.predict(net, x, samples=2000)
    print("epistemic std by moments", moments.epistemic.flatten().tolist())
    print("epistemic std by samples", sampled.epistemic.flatten().tolist())


if __name__ == "__main__":
    main()
