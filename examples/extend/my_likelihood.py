"""A likelihood of one's own: labels of which some are known to be wrong.

`p(y | output) = (1 - e) softmax(output)[y] + e / classes`: one label in `1 / e` is anybody's guess, so that no single
one can pull at the network without bound. A subclass of a known likelihood needs `nll` alone; prediction, evaluation
and the file go by the class below it. Run it: python examples/extend/my_likelihood.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import pocketbayes as pb

WRONG = 0.2


class NoisyLabels(pb.Categorical):
    """Classes, a known fraction of whose labels are drawn at random."""

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over the batch, in nats."""
        known = output.log_softmax(1).gather(1, target[:, None])[:, 0] + math.log(1 - WRONG)
        guessed = torch.full_like(known, math.log(WRONG / output.shape[1]))
        return -torch.logaddexp(known, guessed).mean()


def main() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=random)
    true = (x.sum(1) > 0).long()
    label = torch.where(torch.rand(400, generator=random) < WRONG, torch.randint(0, 2, (400,), generator=random), true)
    for likelihood in (pb.Categorical(), NoisyLabels()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
        net = pb.fit(pb.MeanFieldVI(beta=0.1), model, (x, label), likelihood=likelihood, epochs=30, lr=1e-2)
        right = float((pb.predict(net, x).mean.argmax(1) == true).float().mean())
        print(f"{type(likelihood).__name__}: {100 * right:.1f} % of the true labels")


if __name__ == "__main__":
    main()
