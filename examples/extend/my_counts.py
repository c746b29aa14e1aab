"""A likelihood for counts: a Poisson distribution.

Only `nll` is required. `moments` and `measures` improve predictions and evaluation.
Run it: python examples/extend/my_counts.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pocketbayes as pb


class Counts(pb.Likelihood):
    """y ~ Poisson(exp(output))."""

    name = "counts"

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood in nats, averaged over the batch."""
        return (output[:, 0].exp() - target * output[:, 0] + torch.lgamma(target + 1.0)).mean()

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and std of the count; without this method, predictions describe the raw output."""
        rate = output.exp()
        return rate, rate.sqrt()

    def measures(self, mean: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return per-example metrics that `evaluate` averages in addition to the NLL."""
        return {"mae": (mean[:, 0] - target).abs()}


def main() -> None:
    random = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(400, 1, generator=random) - 2
    y = torch.poisson((1.5 * x[:, 0]).exp(), generator=random).long()
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    net = pb.fit(pb.MeanFieldVI(beta=0.1), model, (x, y), likelihood=Counts(), epochs=30, lr=1e-2, progress=False)
    print({name: round(value, 3) for name, value in pb.evaluate(net, (x, y)).items()})
    answer = pb.predict(net, torch.tensor([[1.0]]))
    print(f"expected {float(answer.mean):.2f} +- {float(answer.std):.2f}; true: 4.48 +- 2.12")


if __name__ == "__main__":
    main()
