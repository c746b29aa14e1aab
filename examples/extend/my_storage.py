"""A storage in one class: a mean for every weight, and one std for all weights of a layer.

Only `moments` is required. The storage then trains, predicts with every propagation, and can be saved, loaded,
compressed and exported. Import this file before loading such a network.
Run it: python examples/extend/my_storage.py
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.methods import Start, VariationalMethod


class LayerStds(pb.Posterior):
    """Weights `w ~ N(mean, std^2)` with one std per layer."""

    def __init__(self, layout: pb.Layout, mean: Tensor, std: float) -> None:
        super().__init__(layout)
        self.mean = nn.Parameter(mean)
        self.log_std = nn.Parameter(torch.full((len(layout),), std).log())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the std of every weight, (n,) each."""
        return self.mean, self.log_std.exp().index_select(0, self.layout.segments(self.mean.device))


@dataclass(frozen=True, kw_only=True)
class OneStdALayer(VariationalMethod):
    """Minimise E[NLL] + beta KL / N with that storage."""

    name = "one-std-a-layer"
    std_init: float = 0.02

    def init(self, model: nn.Module) -> pb.Network:
        """Choose the storage and the propagation."""
        start = Start.of(model, self.bayesian_bias, self.select)
        storage = LayerStds(start.layout, start.mean, self.std_init)
        return pb.Network(start.model, storage, likelihood=start.likelihood, propagation="local")


def main() -> None:
    train, val, test = (pb.data.load("digits", split) for split in ("train", "val", "test"))
    model = pb.models.build("mlp", in_features=64, hidden=[32], out_features=10)
    with tempfile.TemporaryDirectory() as folder:
        net = pb.fit(OneStdALayer(beta=0.1), model, train, epochs=5, lr=2e-2, out=folder, progress=False)
        net = pb.load(folder)
        size = pb.save(net, Path(folder) / "small.pocket", precision="int8")
    print("stored:", pb.census(net).stored, f"in {size} bytes")
    x = torch.stack([test[number][0] for number in range(100)])
    for propagation in ("mean", "sample", "local", "flipout", "moments", "linear"):
        print(f"{propagation}: mean entropy {float(pb.predict(net, x, propagation=propagation).entropy.mean()):.3f}")
    small = pb.compress(net, train, val, max_nll_loss=0.05, samples=3, progress=False)
    print("compressed:", {name: round(value, 3) for name, value in pb.evaluate(small.net, test).items()})


if __name__ == "__main__":
    main()
