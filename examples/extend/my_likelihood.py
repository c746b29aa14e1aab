"""A likelihood for labels of which a known fraction is wrong.

`p(y | output) = (1 - e) softmax(output)[y] + e / classes`: a fraction `e` of the labels is random, which bounds the
loss of a single example. A subclass of an existing likelihood needs only `nll`; prediction, evaluation and the file
format are inherited. Run it: python examples/extend/my_likelihood.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import pocketbayes as pb

WRONG = 0.2


class NoisyLabels(pb.Categorical):
    """A categorical likelihood in which a known fraction of the labels is random."""

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood in nats, averaged over the batch."""
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
