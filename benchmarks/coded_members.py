"""Measure coded ensembles of the networks of members.py: bytes, accuracy, NLL, OOD detection, shift, adaptive passes.

python benchmarks/coded_members.py --data-dir DATA [--members 10] [--max-bytes 760000] [--steps 0] [--cache FOLDER]
python benchmarks/coded_members.py --data-dir DATA --full [--cache FOLDER]
python benchmarks/coded_members.py --data-dir DATA --time [--cache FOLDER]

The first members of DATA/weights form one mixture, which `pb.compress` codes with their number fixed: one codebook for
all members that fills the size limit. With `--steps`, each member is then trained with its uncompressed version as
teacher. The members were trained on every training image, so the validation data (1000 of these) only decide on the
units of the codebook and on whether the trained file is used. Results on CIFAR-10 use all test images; rows with fewer
members are prefixes of the same file. AUROC of the maximum probability on 2000 out-of-distribution images each. Shift:
40 test images under the 15 corruptions of CIFAR-10-C (our own versions) at each severity, with a temperature fitted on
2000 clean images. Adaptive passes: the rule is fitted on every second test image and measured on the others, and vice
versa.

`--full` measures the same members in FP32 under shift; their other results come from members.py. `--time` measures the
CPU seconds that `pb.compress` takes to choose members and bits of five networks within 400,000 bytes.

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
from networks import pretrained_resnet20
from pocketbayes.inference.metrics import dee
from pocketbayes.inference.stopping import choose_stopping, last_steps
from pocketbayes.network import members as networks_of
from pocketbayes.ship.compression import Compressed

MAX_RISE = 0.005
MOST = {"svhn": 2000, "cifar100": 2000}
"""Out-of-distribution data sets, in the order of their files."""
TRAIN, VAL = 10_000, 1000
"""Numbers of training images that `compress` gets as training and as validation data."""
TIMED_MEMBERS, TIMED_BYTES = 5, 400_000
CLEAN = 2000
"""Number of clean images for fitting the temperature under shift."""


def compressed(
    bench: Members, count: int, max_bytes: int, steps: int, out: Path | None, keep: int | None
) -> tuple[Compressed, float]:
    """Compress the first members to a size; return the result and the CPU seconds."""
    net = pb.mixture([pretrained_resnet20(weights(bench.data_dir, number)) for number in range(count)])
    images = pb.data.load("cifar10", "train", bench.data_dir, mean="imagenet", val_fraction=0.0, subset=TRAIN + VAL)
    x, y = images[:]
    train, val = (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])
    clock = time.process_time()
    found = pb.compress(net, train, val, max_bytes=max_bytes, count=keep, steps=steps, out=out, progress=False)
    return found, time.process_time() - clock


def adaptive(each: Tensor, labels: Tensor) -> dict[str, Any]:
    """Cross-fit the stopping rule on two halves; return mean passes, NLL, and NLL with all members."""
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
            return pb.bayesianize(pretrained_resnet20(weights(bench.data_dir, number)), "map")

        clean.append(bench.answers(f"{number:02d}-clean", "cifar10", network, CLEAN))
        shifted.append(bench.answers(f"{number:02d}-{SHIFTED}", SHIFTED, network))
        together = torch.stack(clean).mean(0), labels, torch.stack(shifted).mean(0), targets
        rows.keep(f"{number + 1} in FP32", {"shift": under_shift(*together)})


def timed(bench: Members) -> dict[str, Any]:
    """Measure the CPU time of choosing members and bits within a size."""
    found, seconds = compressed(bench, TIMED_MEMBERS, TIMED_BYTES, 0, None, None)
    chosen = found.chosen
    assert chosen.packed is not None
    return {
        "members": TIMED_MEMBERS,
        "max_bytes": TIMED_BYTES,
        "val": VAL,
        "cpu_seconds": seconds,
        "bytes": chosen.bytes,
        "kept": chosen.packed.networks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--max-bytes", type=int, default=760_000)
    parser.add_argument("--cache", type=Path, default=Path("runs/members"))
    parser.add_argument("--steps", type=int, default=0, help="training steps of each coded member")
    parser.add_argument("--time", action="store_true", help="the seconds that compressing five takes")
    parser.add_argument("--full", action="store_true", help="the members in FP32, under shift")
    args = parser.parse_args()
    torch.set_num_threads(1)
    beside = {"what": "ResNet-20s on CIFAR-10", "outside": MOST, "clean": CLEAN}
    rows, bench = Rows("coded-members", beside), Members(args.data_dir, args.cache)
    if args.full:
        return full_precision(bench, rows)
    if args.time:
        return rows.keep("compress", timed(bench))
    curve = Rows("members").document["curve"]
    name = f"coded-{args.members}-{args.max_bytes}" + (f"-{args.steps}" if args.steps else "")
    file, facts = args.cache / f"{name}.pocket", args.cache / f"{name}.json"
    if not facts.exists():
        out = args.cache / name
        found, seconds = compressed(bench, args.members, args.max_bytes, args.steps, out, args.members)
        found.save(file)
        packed = found.chosen.packed
        assert packed is not None
        sizes = [packed.first(count).size for count in range(1, args.members)] + [packed.size]
        known = {"sizes": sizes, "lambda": found.chosen.how["lam"], "steps": found.chosen.how.get("steps", 0)}
        facts.write_text(json.dumps({**known, "cpu_seconds": seconds}))
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
            row |= {key: known[key] for key in ("lambda", "steps", "cpu_seconds")}
        trained = f", {args.steps} steps" if args.steps else ""
        rows.keep(f"{count} of {args.members} within {args.max_bytes}{trained}", row)


if __name__ == "__main__":
    main()
