"""Compare one pass of moments or the delta method with 5, 10, 30 and 100 weight samples.

python benchmarks/pass_worth.py --data-dir DATA [--network "2DGBNN, ResNet-20=FILE.pocket" ...] [--section time]

LeNet-5 on MNIST trained by 2DGBNN, SSVI and PBN for one, four and one epochs on 12 000 images, and ResNet-20 networks
for CIFAR-10 from files: NLL and ECE on test images, and AUROC by entropy against out-of-distribution images
(Fashion-MNIST, SVHN). CPU times are a separate section.

Rows are written to results/pass-worth.json; finished rows are not run again.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
from measure import Rows, interleaved, ratios
from pocketbayes.inference.metrics import Classification, ood_scores

NAME = "pass-worth"
METHODS: dict[str, tuple[pb.Method, dict[str, Any]]] = {
    "2DGBNN, LeNet-5": (
        pb.WeightSharing(k=64, pretrain_epochs=1, beta=0.01),
        {"lr": 1e-3, "std_lr": 1e-3, "epochs": 1},
    ),
    "SSVI, LeNet-5": (pb.SSVI(density=0.2, swap_every=50), {"lr": 3e-3, "epochs": 4}),
    "PBN, LeNet-5": (pb.PBN(rate=0.05, pretrain_epochs=1, train_samples=2), {"lr": 1e-3, "epochs": 1}),
}
WAYS: dict[str, dict[str, Any]] = {
    "mean": {"propagation": "mean"},
    **{f"{count} samples": {"propagation": "sample", "samples": count} for count in (5, 10, 30, 100)},
    "moments": {"propagation": "moments"},
    "linear, predicted class": {"propagation": "linear", "classes": "predicted"},
    "linear, all classes": {"propagation": "linear", "classes": "all"},
}


class Bench:
    """The data and the networks."""

    def __init__(self, data_dir: Path, files: dict[str, Path], images: int) -> None:
        self.data_dir, self.files, self.images = data_dir, files, images

    def load(self, data: str, split: str, **options: Any) -> Any:
        return pb.data.load(data, split, self.data_dir, val_fraction=0.0, **options)

    def network(self, name: str) -> pb.network.Net:
        if name in self.files:
            return pb.load(self.files[name])
        method, settings = METHODS[name]
        torch.manual_seed(0)
        train = self.load("mnist", "train", subset=12_000)
        return pb.fit(method, pb.models.build("lenet5"), train, batch_size=64, progress=False, **settings)

    def inputs(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return test images, their labels, and out-of-distribution images."""
        if name in self.files:
            x, y = self.load("cifar10", "test", mean="imagenet").__getitems__(range(self.images // 2))
            return x, y, self.load("svhn", "test", mean="imagenet").__getitems__(range(self.images // 2))[0]
        x, y = self.load("mnist", "test").__getitems__(range(self.images))
        return x, y, self.load("fashion-mnist", "test", mean="mnist").__getitems__(range(self.images))[0]

    def names(self) -> list[str]:
        return [*METHODS, *self.files]

    def quality(self) -> None:
        rows = Rows(NAME, key="quality")
        for name in self.names():
            row = dict(rows.get(name, {}))
            missing = [way for way in WAYS if way not in row]
            if not missing:
                continue
            net, (x, y, outside) = self.network(name), self.inputs(name)
            for way in missing:
                inside, out = (pb.predict(net, images, **WAYS[way]) for images in (x, outside))
                measure = Classification(10)
                measure.update(inside.probs, y)
                kept = {k: v for k, v in measure.compute().items() if k in ("accuracy", "nll", "ece")}
                scores = {
                    kind: ood_scores(getattr(inside, kind), getattr(out, kind))["auroc"]
                    for kind in ("entropy", "epistemic")
                    if way != "mean" or kind == "entropy"
                }
                row[way] = kept | {f"auroc, {kind}": value for kind, value in scores.items()}
                rows.keep(name, row)

    def time(self, rounds: int, note: str) -> None:
        rows = Rows(NAME, key="time")
        rows.keep("conditions", {"rounds": rounds, "threads": torch.get_num_threads(), "note": note})
        for name in self.names():
            net, x = self.network(name), self.inputs(name)[0][:64]
            actions = {way: partial(pb.predict, net, x, **settings) for way, settings in WAYS.items()}
            rows.keep(name, ratios(interleaved(actions, rounds, clock=time.process_time), "mean"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--network", action="append", default=[], metavar="NAME=FILE", help="trained on CIFAR-10")
    parser.add_argument("--section", choices=("quality", "time"), default="quality")
    parser.add_argument("--images", type=int, default=1000, help="test images, and as many of another kind")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="", help="what to know of the machine, written beside the times")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = {name: Path(file) for name, file in (item.split("=", 1) for item in arguments.network)}
    bench = Bench(arguments.data_dir, files, arguments.images)
    if arguments.section == "quality":
        bench.quality()
    else:
        bench.time(arguments.rounds, arguments.note)


if __name__ == "__main__":
    main()
