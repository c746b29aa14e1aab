"""Measure ensembles of 1 to 10 independent ResNet-20s on CIFAR-10.

python benchmarks/members.py --data-dir DATA [--cache FOLDER]

DATA/weights holds ten public, independently trained ResNet-20s, used for measurement only. For every number k of
members, metrics are means over ten subsets (k neighbours on a ring, so that each member is in k of them): accuracy,
NLL, ECE, NLL with a temperature fitted on the other half of the test images, AUROC of the maximum probability against
SVHN and CIFAR-100. `dee` uses the curve of the calibrated NLL.

Probabilities are cached; results go to results/members.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
from measure import write_result
from networks import pretrained_resnet20
from pocketbayes.data.shift import ORIGINAL_15, corrupted
from pocketbayes.inference.metrics import Classification, calibrated_nll, ood_scores
from pocketbayes.inference.metrics.calibration import temperature

COUNT = 10
OUTSIDE = {"svhn": 10_000, "cifar100": 10_000}
SHIFTED = "cifar10-c"
SEVERITIES, SHIFTED_IMAGES = 5, 40
"""The first test images under every corruption of CIFAR-10-C at every severity."""


def weights(data_dir: Path, number: int) -> Path:
    """Return the checkpoint of a member; the first has another source than the rest."""
    folder = data_dir / "weights"
    return folder / "members" / f"resnet20-{number:02d}.safetensors" if number else folder / "resnet20-12fca82f.th"


def measured(probs: dict[str, Tensor], labels: Tensor) -> dict[str, float]:
    """Return the metrics of a classifier from its probabilities on every data set."""
    measures = Classification(probs["cifar10"].shape[1])
    measures.update(probs["cifar10"], labels)
    found = {name: measures.compute()[name] for name in ("accuracy", "nll", "ece")}
    found["calibrated_nll"] = calibrated_nll(probs["cifar10"], labels)
    sure = {name: each.max(1).values for name, each in probs.items()}
    others = [name for name in OUTSIDE if name in probs]
    return found | {f"{name}_auroc": ood_scores(-sure["cifar10"], -sure[name])["auroc"] for name in others}


def under_shift(clean: Tensor, labels: Tensor, shifted: Tensor, targets: Tensor) -> dict[str, dict[str, float]]:
    """Return the metrics by severity, with a temperature fitted on clean images."""
    heat = temperature(clean.clamp(min=1e-12).log(), labels)
    found = {}
    for number, (probs, y) in enumerate(zip(shifted.chunk(SEVERITIES), targets.chunk(SEVERITIES)), 1):
        measures = Classification(probs.shape[1])
        measures.update((probs.clamp(min=1e-12).log() / heat).softmax(1), y)
        found[str(number)] = {name: measures.compute()[name] for name in ("accuracy", "nll", "ece")}
    return found


class Members:
    """Cached probabilities of each network."""

    def __init__(self, data_dir: Path, cache: Path) -> None:
        self.data_dir, self.cache = data_dir, cache
        cache.mkdir(parents=True, exist_ok=True)

    def images(self, name: str, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the first test images of a data set and their labels; corrupted images by severity."""
        if name == SHIFTED:
            first = pb.data.load("cifar10", "test", self.data_dir, mean="imagenet", subset=list(range(SHIFTED_IMAGES)))
            parts = [corrupted(first, c, s)[:] for s in range(1, SEVERITIES + 1) for c in ORIGINAL_15]
            return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        data = pb.data.load(name, "test", self.data_dir, mean="imagenet")
        x, y = data.__getitems__(range(min(len(data), most or OUTSIDE.get(name, len(data)))))
        return x, y

    def probs(self, number: int) -> dict[str, Tensor]:
        def network() -> pb.Network:
            return pb.bayesianize(pretrained_resnet20(weights(self.data_dir, number)), "map")

        return {name: self.answers(f"{number:02d}-{name}", name, network) for name in ("cifar10", *OUTSIDE)}

    def answers(self, key: str, name: str, network: Callable[[], pb.Network], most: int | None = None) -> Tensor:
        """Return the probabilities of a network on a data set, from the cache if possible."""
        path = self.cache / f"{key}.pt"
        if not path.exists():
            torch.save(pb.predict(network(), self.images(name, most)[0]).probs, path)
        return torch.load(path, weights_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("runs/members"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    members = Members(args.data_dir, args.cache)
    labels = members.images("cifar10")[1]
    each = [members.probs(number) for number in range(COUNT)]
    rows: dict[str, Any] = {}
    for count in range(1, COUNT + 1):
        subsets = [[(start + step) % COUNT for step in range(count)] for start in range(COUNT if count < COUNT else 1)]
        figures = []
        for subset in subsets:
            together = {name: torch.stack([each[number][name] for number in subset]).mean(0) for name in each[0]}
            figures.append(measured(together, labels))
        rows[str(count)] = {name: mean(row[name] for row in figures) for name in figures[0]}
        spread = {name: stdev(row[name] for row in figures) for name in figures[0]} if len(subsets) > 1 else {}
        rows[str(count)] |= {"subsets": len(subsets), "std": spread}
        print(count, rows[str(count)], flush=True)
    answers = torch.stack([probs["cifar10"].argmax(1) for probs in each])
    pairs = [(a, b) for a in range(COUNT) for b in range(a)]
    result = {
        "what": "ResNet-20 on CIFAR-10, members trained independently",
        "images": {"cifar10": len(labels), **OUTSIDE},
        "rows": rows,
        "curve": [rows[str(count)]["calibrated_nll"] for count in range(1, COUNT + 1)],
        "disagreement": mean(float((answers[a] != answers[b]).double().mean()) for a, b in pairs),
    }
    print(write_result("members", result))


if __name__ == "__main__":
    main()
