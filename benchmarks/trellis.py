"""Compare codes on a trellis with codes on a line, at several lambdas: bytes and divergence from the original network.

python benchmarks/trellis.py --data-dir DATA

ResNet-20 on CIFAR-10 without training, calibrated on 2000 training images. The divergence is the mean KL divergence of
the coded network's probabilities from those of the original on all test images: it resolves smaller differences than
the accuracy. The same for normal numbers: bits and mean squared error. Rows go to results/trellis.json.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
from measure import Rows
from networks import classifier, pretrained_resnet20
from pocketbayes.base.progress import Silent
from pocketbayes.files.network_file import Packed
from pocketbayes.plane.codes import entropy_bits, fit_codebook
from pocketbayes.plane.trellis import TrellisSearch, code_paths, fit_trellis
from pocketbayes.ship.compression.coding import CODED_PRECISION, Recipe
from pocketbayes.ship.compression.sweep import Sweep

LAMBDAS = (0.03, 0.07, 0.13, 0.2)
CALIBRATION = 2000


def outputs(net: pb.Net, images: Tensor) -> Tensor:
    return torch.cat([pb.predict(net, part, samples=1).probs for part in images.split(500)]).clamp(min=1e-12).log()


def coded(sweep: Sweep, recipe: Recipe, images: Tensor, labels: Tensor, original: Tensor) -> dict[str, Any]:
    clock = time.process_time()
    made = sweep.code(recipe).net
    seconds = time.process_time() - clock
    packed = Packed.of(sweep.finish(made, recipe.point_bits), CODED_PRECISION)
    found = outputs(packed.unpack(sweep.models), images)
    return {
        "bytes": packed.size,
        "divergence": float((original.exp() * (original - found)).sum(1).mean()),
        "accuracy": float((found.argmax(1) == labels).double().mean()),
        "cpu_seconds": seconds,
    }


def normal(lam: float, trellis: bool) -> dict[str, float]:
    """Code a quarter of a million normal numbers."""
    torch.manual_seed(0)
    values = torch.randn(1, 2048, 128)
    if not trellis:
        line = fit_codebook(values.flatten(), lam)
        index = codes = line.assign(values)
        decoded = line.centres[index]
    else:
        book = fit_trellis(values.flatten(), lam)
        search, places = TrellisSearch(book), torch.zeros_like(values, dtype=torch.long)
        search.start(places[..., :0])
        index, decoded, _ = code_paths(values, places, None, search)
        codes = index % book.half
    error = float((values - decoded).square().mean())
    return {"bits": entropy_bits(torch.bincount(codes.flatten())), "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows("trellis", {"calibration": CALIBRATION})
    for lam in LAMBDAS:
        line, path = normal(lam, False), normal(lam, True)
        saved = line["bits"] - path["bits"] + 0.5 * math.log2(line["error"] / path["error"])
        rows.keep(f"normal, {lam}", {"line": line, "trellis": path, "bits_saved_at_equal_error": saved})
    options: dict[str, Any] = {"mean": "imagenet", "val_fraction": 0.0}
    net = classifier(pretrained_resnet20(args.data_dir / "weights" / "resnet20-12fca82f.th"), pb.Deterministic())
    train = pb.data.load("cifar10", "train", args.data_dir, subset=CALIBRATION, seed=0, **options)
    images, labels = pb.data.load("cifar10", "test", args.data_dir, **options)[:]
    sweep = Sweep(net, train, train, 1, 0, None, Silent())
    sweep.measured()
    original = outputs(net, images)
    for lam in LAMBDAS:
        for name, trellis in (("line", False), ("trellis", True)):
            rows.keep(f"{name}, {lam}", coded(sweep, Recipe(lam, trellis=trellis), images, labels, original))


if __name__ == "__main__":
    main()
