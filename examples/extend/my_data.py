"""A data set of your own, with a name: a loader function, registered in one line.

Run it: python examples/extend/my_data.py
"""

from __future__ import annotations

import torch

import pocketbayes as pb
from pocketbayes.data import Info
from pocketbayes.data.dataset import Arrays
from pocketbayes.data.registry import LOADERS
from pocketbayes.data.request import Request


def two_moons(request: Request, *, noise: float = 0.1) -> Arrays:
    """Return two interleaved half circles; `noise` is an option that recipes may set."""
    count = {"train": 1000, "val": 200, "test": 400}[request.split]
    generator = torch.Generator().manual_seed({"train": 0, "val": 1, "test": 2}[request.split])
    label = torch.randint(0, 2, (count,), generator=generator)
    angle = torch.pi * torch.rand(count, generator=generator)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    x = torch.where(label[:, None] == 0, upper, lower) + noise * torch.randn(count, 2, generator=generator)
    return Arrays(x, label, Info("two-moons", "classification", 2, ("upper", "lower"), (2,)))


def main() -> None:
    LOADERS["two-moons"] = two_moons
    train, test = pb.data.load("two-moons", "train"), pb.data.load("two-moons", "test", noise=0.2)
    model = pb.models.build("mlp", in_features=2, hidden=[32], out_features=2)
    net = pb.fit(pb.MeanFieldVI(beta=0.1), model, train, epochs=10, lr=1e-2, progress=False)
    print({name: round(value, 3) for name, value in pb.evaluate(net, test).items()})
    far = pb.predict(net, torch.tensor([[0.5, 0.25], [8.0, -9.0]]))
    print("entropy between the moons and far away:", far.entropy.tolist())


if __name__ == "__main__":
    main()
