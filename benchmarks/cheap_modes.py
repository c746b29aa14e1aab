"""Compare cheap ensembles with independent networks: benefit per byte and per training cost.

python benchmarks/cheap_modes.py --data-dir DATA [--seeds 2]

LeNet-5 on 3000 MNIST images, 8 epochs of Adam. Modes that come from one training: cyclic snapshots (each further cycle
of 2 epochs from the full learning rate gives a member; Huang et al. 2017), SWAG around one network and around each
member (MultiSWAG), four networks of half the width (which Packed-Ensembles train together in place of one; Laurent et
al. 2023), and factors per member and unit around shared weights (BatchEnsemble; Wen et al. 2020), where each example
trains one member. One network that is trained twice as long shows the effect of longer training alone. Training is
counted in passes over the data by one LeNet-5; a network of half the width costs a quarter.

All are coded by `pb.compress`: the smallest file whose NLL on 2000 validation images is at most .003 above that of the
mode. DEE is read from the curve of 1 to 10 independent networks. Means over seeds, all test images. Writes
results/cheap-modes.json; finished rows are not run again.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from measure import Rows
from pocketbayes.inference.metrics import calibrated_nll, dee
from pocketbayes.network import Mixture, Net, Network, members

EPOCHS, CYCLE, MEMBERS, FRESH = 8, 2, 5, 10
IMAGES, VAL = 3000, 2000
SETTINGS: dict[str, Any] = {"batch_size": 32, "lr": 2e-3, "schedule": "cosine", "progress": False}
MAX_NLL_LOSS = 0.003
Made = tuple[Net, float]
"""A mode and its number of passes."""


class Bench:
    """The data, and the modes by name."""

    def __init__(self, data_dir: Path, seed: int) -> None:
        self.seed = seed
        self.train = pb.data.load("mnist", "train", data_dir, subset=IMAGES)
        self.val = pb.data.load("mnist", "val", data_dir, subset=VAL)
        self.test = pb.data.load("mnist", "test", data_dir)
        self.modes: dict[str, Callable[[], Made]] = {
            "one network": lambda: (self.first(1), EPOCHS),
            "one network, twice as long": lambda: (self.fit("map", lenet5(), 2 * EPOCHS), 2 * EPOCHS),
            f"{MEMBERS} fresh starts": lambda: (self.first(MEMBERS), MEMBERS * EPOCHS),
            f"{MEMBERS} cyclic snapshots": self.snapshots,
            "SWAG": lambda: self.swag(1),
            f"SWAG of {MEMBERS} fresh starts": lambda: self.swag(MEMBERS),
            "4 networks of half the width": lambda: (self.fit(pb.Ensemble(members=4), lenet5(2)), EPOCHS),
            f"factors of {MEMBERS} members": lambda: (self.fit("map", BatchEnsemble(MEMBERS)), EPOCHS),
        }
        self.fresh = members(self.fit(pb.Ensemble(members=FRESH), lenet5()))

    def fit(self, method: pb.Method | str, model: nn.Module, epochs: int = EPOCHS, seed: int = 0) -> Net:
        return pb.fit(method, model, self.train, epochs=epochs, seed=1000 * seed + self.seed, **SETTINGS)

    def first(self, count: int) -> Net:
        return Mixture(self.fresh[:count]) if count > 1 else self.fresh[0]

    def snapshots(self) -> Made:
        """Train the first network further in cycles that restart the learning rate."""
        found = [self.fresh[0]]
        for number in range(1, MEMBERS):
            again = self.fit("map", found[-1].to_module(), CYCLE, number)
            assert isinstance(again, Network)
            found.append(again)
        return Mixture(found), EPOCHS + CYCLE * (MEMBERS - 1)

    def swag(self, count: int) -> Made:
        """Collect weights around each of the first independent networks."""
        method, found = pb.SWAG(swag_epochs=EPOCHS, swag_lr=1e-3), []
        for number, network in enumerate(self.fresh[:count]):
            own = self.fit(method, copy.deepcopy(network), seed=number)
            assert isinstance(own, Network)
            found.append(own)
        return Mixture(found) if count > 1 else found[0], 2 * EPOCHS * count

    def curve(self) -> list[float]:
        """Return the calibrated NLL of 1 to 10 independent networks, each averaged over cyclic subsets."""
        x, labels = self.test[:]
        each = torch.stack([pb.predict(network, x).probs for network in self.fresh])
        found = []
        for count in range(1, FRESH + 1):
            subsets = [[(start + step) % FRESH for step in range(count)] for start in range(FRESH)]
            found.append(mean(calibrated_nll(each[subset].mean(0), labels) for subset in subsets))
        return found

    def measured(self, name: str, curve: list[float]) -> dict[str, Any]:
        """Train a mode, code it and measure both versions."""
        net, passes = self.modes[name]()
        found = pb.compress(
            net, self.train, self.val, max_nll_loss=MAX_NLL_LOSS, count=len(members(net)), progress=False
        )
        row: dict[str, Any] = {"passes": passes, "bytes": found.chosen.bytes, "how": found.chosen.how}
        for kind, own in (("fp32", net), ("coded", found.net)):
            figures = pb.evaluate(own, self.test, progress=False)
            row[kind] = {key: figures[key] for key in ("accuracy", "nll", "ece", "calibrated_nll")}
            worth = dee(figures["calibrated_nll"], curve)
            row[kind]["dee"] = worth if math.isfinite(worth) else float(FRESH)
        return row


def lenet5(narrower: int = 1) -> nn.Module:
    """Build LeNet-5, optionally with narrower hidden layers."""
    first, second, third, fourth = (width // narrower for width in (6, 16, 120, 84))
    return nn.Sequential(
        nn.Conv2d(1, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(second * 25, third), nn.ReLU(), nn.Linear(third, fourth), nn.ReLU(), nn.Linear(fourth, 10),
    )  # fmt: skip


class Factored(nn.Module):
    """A layer with factors per member for its inputs and outputs, initialised as random signs."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, count: int) -> None:
        super().__init__()
        self.layer = layer
        inputs, outputs = layer.weight.shape[1], layer.weight.shape[0]
        self.before, self.after = (nn.Parameter(torch.randn(count * size).sign()) for size in (inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(count * outputs))
        layer.register_parameter("bias", None)
        self.count = count

    def forward(self, x: Tensor, member: Tensor) -> Tensor:
        shape = (len(x), -1, *[1] * (x.ndim - 2))
        before, after, bias = (
            factor.view(self.count, -1)[member].view(shape) for factor in (self.before, self.after, self.bias)
        )
        found: Tensor = self.layer(x * before) * after + bias
        return found


class BatchEnsemble(nn.Module):
    """LeNet-5 with factors per member: an example trains one member, and all members predict."""

    def __init__(self, count: int) -> None:
        super().__init__()
        layers = (Factored(each, count) if isinstance(each, (nn.Conv2d, nn.Linear)) else each for each in lenet5())
        self.layers, self.count = nn.ModuleList(layers), count

    def forward(self, x: Tensor) -> Tensor:
        size = len(x)
        if not self.training:
            x = x.repeat_interleave(self.count, 0)
        member = torch.arange(len(x), device=x.device) % self.count
        for layer in self.layers:
            x = layer(x, member) if isinstance(layer, Factored) else layer(x)
        if self.training:
            return x
        return F.log_softmax(x, 1).view(size, self.count, -1).logsumexp(1) - math.log(self.count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    beside = {"what": "LeNet-5 on MNIST", "images": IMAGES, "epochs": EPOCHS, "max_nll_loss": MAX_NLL_LOSS}
    rows = Rows("cheap-modes", beside)
    for seed in range(args.seeds):
        name = f"seed {seed}"
        row = rows.get(name, {"modes": {}})
        torch.manual_seed(seed)
        bench = Bench(args.data_dir, seed)
        row["curve"] = bench.curve()
        for mode in bench.modes:
            if mode not in row["modes"]:
                torch.manual_seed(seed)
                row["modes"][mode] = bench.measured(mode, row["curve"])
                rows.keep(name, row)


if __name__ == "__main__":
    main()
