"""Measure VDP++ from pretrained weights: a ResNet-20 and a vision transformer. See vdp_scratch.py for LeNet-5.

python benchmarks/vdp.py --data-dir DATA --weights resnet20-12fca82f.th [--only cifar10;vit]

- cifar10: pretrained ResNet-20, VDP++ for 50 steps on 6 400 augmented images.
- vit: a ViT-Ti on MNIST, VDP++ after deterministic training: its variance under noise.

Rows are written to results/vdp.json; finished rows are not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from measure import Rows
from networks import classifier, pretrained_resnet20, trained_vit
from pocketbayes.inference import curves

KEPT = ("accuracy", "nll", "ece", "brier", "count")
IMAGES = 10_000
PREDICTED = {"map": "mean", "vdp": "moments"}


class Bench:
    """The data and the finished rows."""

    def __init__(self, data_dir: Path, weights: Path) -> None:
        self.data_dir, self.weights = data_dir, weights
        self.rows = Rows("vdp")

    def images(self, data: str, split: str, **options: Any) -> Any:
        mean = {"mean": "imagenet"} if data == "cifar10" else {}
        return pb.data.load(data, split, self.data_dir, val_fraction=0.0, **mean, **options)

    # -- CIFAR-10 -----------------------------------------------------------------------------------------------------

    def cifar10(self) -> None:
        model = pretrained_resnet20(self.weights)
        test = self.images("cifar10", "test")
        nets: dict[str, Any] = {
            "map": lambda: classifier(model, pb.Deterministic()),
            "vdp": lambda: self.resnet(model),
        }
        for method, make in nets.items():
            name = f"cifar10, {method}"
            if name in self.rows:
                continue
            net = make()
            how = {"propagation": PREDICTED[method]}
            row: dict[str, Any] = {k: v for k, v in pb.evaluate(net, test, **how).items() if k in KEPT}
            few = test.take(torch.arange(500))
            row["pruning"] = pruning(method, net, few)
            row["noise"] = curves.noise_curve(net, few, **how)
            self.rows.keep(name, row)

    def resnet(self, model: torch.nn.Module) -> pb.Network:
        method = pb.VDP(std_init=0.005, prior="pretrained", prior_std=0.1, beta=0.01)
        train = self.images("cifar10", "train", augment=True, subset=6400)
        net = pb.fit(method, model, train, epochs=1, batch_size=128, lr=1e-4, std_lr=1e-2, progress=False)
        assert isinstance(net, pb.Network)
        return net

    # -- a vision transformer -----------------------------------------------------------------------------------------

    def vit(self) -> None:
        if "mnist, vit-ti, vdp" in self.rows:
            return
        first = trained_vit(self.images("mnist", "train", subset=IMAGES))
        few = self.images("mnist", "train", subset=1600)
        net = pb.fit(pb.VDP(std_init=1e-3, beta=0.01), first, few, epochs=1, batch_size=32, lr=1e-5, progress=False)
        test = self.images("mnist", "test", subset=1000)
        measures = pb.evaluate(net, test)
        row: dict[str, Any] = {key: measures[key] for key in KEPT}
        row["noise"] = curves.noise_curve(net, test.take(torch.arange(300)))
        self.rows.keep("mnist, vit-ti, vdp", row)


def pruning(method: str, net: pb.Network, data: Any) -> dict[str, Any]:
    """Return accuracy by fraction pruned; networks without stds have no signal-to-noise ratio."""
    criteria = ("magnitude",) if method == "map" else ("magnitude", "snr")
    return {by: curves.pruning_curve(net, data, by=by, propagation="mean") for by in criteria}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="a checkpoint of ResNet-20 trained on CIFAR-10")
    parser.add_argument("--only", default="cifar10;vit", help="parts, separated by semicolons")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(arguments.data_dir, arguments.weights)
    for part in arguments.only.split(";"):
        {"cifar10": bench.cifar10, "vit": bench.vit}[part]()


if __name__ == "__main__":
    main()
