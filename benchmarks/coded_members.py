"""Coded ensembles of the members of members.py: bytes, accuracy, NLL and what adaptive passes save.

python benchmarks/coded_members.py --data-dir DATA [--members 5] [--max-bytes 400000] [--cache FOLDER]

The first members of DATA/weights as one mixture, coded without training: one codebook for all, its lambda chosen by the
size of the file alone, error feedback and batch-norm correction on 1024 training images. Every figure is of all test
images; rows for fewer members are prefixes of the same file. Adaptive passes: the rule is fitted on every second test
image and measured on the others, both ways, for the members have seen every training image.

Rows go to results/coded-members.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
from measure import Rows
from members import OUTSIDE, Members, measured, weights
from networks import given_resnet20
from pocketbayes.files.network_file import Packed
from pocketbayes.inference.adaptive import choose_stopping
from pocketbayes.inference.metrics import dee
from pocketbayes.methods.recalibration import batch_norm_statistics, correct_statistics
from pocketbayes.network import Mixture
from pocketbayes.network import members as networks_of
from pocketbayes.ship.compression.coding import CODED_PRECISION, Recipe, code, round_points
from pocketbayes.ship.compression.inputs import input_moments

MAX_RISE = 0.01


def coded(net: Mixture, batches: list[Tensor], max_bytes: int) -> tuple[Packed, float, float]:
    """Return the finest file within a size, its lambda, and the seconds of CPU that it took."""
    clock = time.process_time()
    examples = sum(map(len, batches))
    moments = [input_moments(network, batches, examples) for network in networks_of(net)]
    lam, found = 0.1, None
    for _ in range(4):
        made = code(net, Recipe(lam), moments).net
        packed = Packed.of(made, CODED_PRECISION)
        if packed.size <= max_bytes:
            found = made, lam
            if packed.size > 0.985 * max_bytes:
                break
        lam *= (packed.size / (0.993 * max_bytes)) ** 2
    assert found is not None
    made, lam = found
    (before,) = batch_norm_statistics([net], batches)[1]
    (own,) = batch_norm_statistics([made], batches)[1]
    correct_statistics(made, own, net, before)
    round_points(made)
    return Packed.of(made, CODED_PRECISION), lam, time.process_time() - clock


def adaptive(each: Tensor, labels: Tensor) -> dict[str, Any]:
    """Fit on one half and measure on the other, both ways: mean passes, NLL, and NLL with all members."""
    counts = torch.arange(1, len(each) + 1)
    answers = (each.cumsum(0) / counts[:, None, None]).clamp(min=1e-12).log()
    figures = []
    for fit, test in ((0, 1), (1, 0)):
        rule = choose_stopping(answers[:, fit::2], labels[fit::2], counts.tolist(), MAX_RISE)
        scaled = torch.stack([(a.double() / t).log_softmax(1) for a, t in zip(answers[:, test::2], rule.temperatures)])
        settled = scaled.amax(2).exp() >= rule.threshold
        settled[-1] = True
        last = settled.int().argmax(0)
        y = labels[test::2]
        losses = -scaled.gather(2, y.expand(len(each), -1)[..., None])[..., 0]
        chosen = scaled.gather(0, last[None, :, None].expand(1, -1, scaled.shape[2]))[0]
        figures.append(
            {
                "passes": float((last + 1).double().mean()),
                "nll": float(losses.gather(0, last[None]).mean()),
                "nll_with_all": float(losses[-1].mean()),
                "accuracy": float((chosen.argmax(1) == y).double().mean()),
            }
        )
    found = {name: mean(row[name] for row in figures) for name in figures[0]}
    return {**found, "rise": found["nll"] / found["nll_with_all"] - 1, "max_rise": MAX_RISE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--max-bytes", type=int, default=400_000)
    parser.add_argument("--cache", type=Path, default=Path("runs/members"))
    parser.add_argument("--outside", nargs="*", default=list(OUTSIDE), help="data sets of other images")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows("coded-members", {"what": "ResNet-20 on CIFAR-10, no training", "outside": OUTSIDE})
    curve = Rows("members").document["curve"]
    bench = Members(args.data_dir, args.cache)
    net = pb.mixture([given_resnet20(weights(args.data_dir, number)) for number in range(args.members)])
    name = f"coded-{args.members}-{args.max_bytes}"
    file, facts = args.cache / f"{name}.pocket", args.cache / f"{name}.json"
    if not facts.exists():
        train = pb.data.load("cifar10", "train", args.data_dir, mean="imagenet", val_fraction=0.0, subset=1024)
        packed, lam, seconds = coded(net, list(train[:][0].split(128)), args.max_bytes)
        packed.write(file)
        sizes = [packed.first(count).size for count in range(1, args.members)] + [packed.size]
        facts.write_text(json.dumps({"sizes": sizes, "lambda": lam, "cpu_seconds": seconds}))
    known = json.loads(facts.read_text())
    small = networks_of(pb.load(file))
    labels = bench.images("cifar10")[1]
    each: dict[str, list[Tensor]] = {data: [] for data in ("cifar10", *args.outside)}
    for count, network in enumerate(small, 1):
        for data, found in each.items():
            found.append(bench.answers(f"{name}-{count}-{data}", data, lambda own=network: own))
        figures = measured({data: torch.stack(found).mean(0) for data, found in each.items()}, labels)
        worth = dee(figures["calibrated_nll"], curve)
        row = {"bytes": known["sizes"][count - 1], **figures, "dee": worth if math.isfinite(worth) else None}
        if count == args.members:
            row |= {"lambda": known["lambda"], "cpu_seconds": known["cpu_seconds"]}
            row["adaptive"] = adaptive(torch.stack(each["cifar10"]), labels)
        rows.keep(f"{count} of {args.members} within {args.max_bytes}", row)


if __name__ == "__main__":
    main()
