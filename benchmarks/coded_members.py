"""Coded ensembles of the members of members.py: bytes, accuracy, NLL, other images, shift, and adaptive passes.

python benchmarks/coded_members.py --data-dir DATA [--members 10] [--max-bytes 760000] [--cache FOLDER]
python benchmarks/coded_members.py --data-dir DATA --full [--cache FOLDER]

The first members of DATA/weights as one mixture, coded without training: one codebook for all, its lambda chosen by the
size of the file alone, error feedback and batch-norm correction on 1024 training images. Every figure on CIFAR-10 is of
all test images; rows for fewer members are prefixes of the same file. AUROC of the maximum probability on 2000 other
images each. Shift: 40 test images under the 15 corruptions of CIFAR-10-C (our own versions) at each severity, with a
temperature fitted on 2000 clean images. Adaptive passes: the rule is fitted on every second test image and measured on
the others, both ways, for the members have seen every training image.

`--full` measures the same members under shift in FP32; their other figures are those of members.py.

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
from members import OUTSIDE, SHIFTED, Members, measured, under_shift, weights
from networks import given_resnet20
from pocketbayes.files.network_file import Packed
from pocketbayes.inference.metrics import dee
from pocketbayes.inference.stopping import choose_stopping, last_steps
from pocketbayes.methods.recalibration import batch_norm_statistics, correct_statistics
from pocketbayes.network import Mixture
from pocketbayes.network import members as networks_of
from pocketbayes.ship.compression.coding import CODED_PRECISION, Recipe, code, round_points
from pocketbayes.ship.compression.feedback import error_shares
from pocketbayes.ship.compression.inputs import input_moments

MAX_RISE = 0.005
MOST = {"svhn": 2000, "cifar100": 2000}
"""Other images, in the order of their files."""
CLEAN = 2000
"""Clean images that the temperature under shift is fitted on."""


def coded(net: Mixture, batches: list[Tensor], max_bytes: int) -> tuple[Packed, float, float]:
    """Return the finest file within a size, its lambda, and the seconds of CPU that it took."""
    clock = time.process_time()
    examples = sum(map(len, batches))
    shares = [error_shares(input_moments(network, batches, examples)) for network in networks_of(net)]
    lam, found = 0.1, None
    for _ in range(4):
        made = code(net, Recipe(lam), shares).net
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
    count, figures = len(each), []
    for fit, test in ((0, 1), (1, 0)):
        rule = choose_stopping(each[:, fit::2], labels[fit::2], [1] * count, MAX_RISE, [1.0] * count, reorder=True)
        means = each[list(rule.order), test::2].double().cumsum(0) / torch.arange(1, count + 1)[:, None, None]
        scaled = torch.stack([(a.clamp(min=1e-12).log() / t).log_softmax(1) for a, t in zip(means, rule.temperatures)])
        last, y = last_steps(scaled.amax(2).exp(), rule.threshold), labels[test::2]
        losses = -scaled.gather(2, y.expand(count, -1)[..., None])[..., 0]
        chosen = scaled.gather(0, last[None, :, None].expand(1, -1, scaled.shape[2]))[0]
        figures.append(
            {
                "passes": float((last + 1).double().mean()),
                "nll": float(losses.gather(0, last[None]).mean()),
                "nll_with_all": float(losses[-1].mean()),
                "accuracy": float((chosen.argmax(1) == y).double().mean()),
                "threshold": rule.threshold,
            }
        )
    found = {name: mean(row[name] for row in figures) for name in figures[0]}
    return {**found, "rise": found["nll"] / found["nll_with_all"] - 1, "max_rise": MAX_RISE}


def full_precision(bench: Members, rows: Rows) -> None:
    """Measure FP32 members under shift."""
    clean, labels = [], bench.images("cifar10", CLEAN)[1]
    shifted, targets = [], bench.images(SHIFTED)[1]
    for number in range(10):

        def network(number: int = number) -> pb.Network:
            return pb.bayesianize(given_resnet20(weights(bench.data_dir, number)), "map")

        clean.append(bench.answers(f"{number:02d}-clean", "cifar10", network, CLEAN))
        shifted.append(bench.answers(f"{number:02d}-{SHIFTED}", SHIFTED, network))
        together = torch.stack(clean).mean(0), labels, torch.stack(shifted).mean(0), targets
        rows.keep(f"{number + 1} in FP32", {"shift": under_shift(*together)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--max-bytes", type=int, default=760_000)
    parser.add_argument("--cache", type=Path, default=Path("runs/members"))
    parser.add_argument("--full", action="store_true", help="the members in FP32, under shift")
    args = parser.parse_args()
    torch.set_num_threads(1)
    beside = {"what": "ResNet-20 on CIFAR-10, no training", "outside": MOST, "clean": CLEAN}
    rows, bench = Rows("coded-members", beside), Members(args.data_dir, args.cache)
    if args.full:
        return full_precision(bench, rows)
    curve = Rows("members").document["curve"]
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
    labels, targets = bench.images("cifar10")[1], bench.images(SHIFTED)[1]
    each: dict[str, list[Tensor]] = {data: [] for data in ("cifar10", *OUTSIDE, SHIFTED)}
    for count, network in enumerate(networks_of(pb.load(file)), 1):
        for data, found in each.items():
            key = f"{name}-{count}-{data}" + (f"-{MOST[data]}" if data in MOST else "")
            found.append(bench.answers(key, data, lambda own=network: own, MOST.get(data)))
        means = {data: torch.stack(found).mean(0) for data, found in each.items()}
        figures = measured(means, labels)
        worth = dee(figures["calibrated_nll"], curve)
        row = {"bytes": known["sizes"][count - 1], **figures, "dee": worth if math.isfinite(worth) else None}
        row["shift"] = under_shift(means["cifar10"][:CLEAN], labels[:CLEAN], means[SHIFTED], targets)
        if count > 1:
            row["adaptive"] = adaptive(torch.stack(each["cifar10"]), labels)
        if count == args.members:
            row |= {"lambda": known["lambda"], "cpu_seconds": known["cpu_seconds"]}
        rows.keep(f"{count} of {args.members} within {args.max_bytes}", row)


if __name__ == "__main__":
    main()
