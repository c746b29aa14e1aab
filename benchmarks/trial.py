"""Trials on MNIST: the data, and the metrics of one network."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

import pocketbayes as pb
from measure import Rows
from pocketbayes.inference.metrics import ood_scores
from pocketbayes.inference.metrics.tempered import calibrated_nll

SAMPLES = 10
BATCH = 1000
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Data:
    """Training images, evaluation images, and Fashion-MNIST images with the same normalisation."""

    train: Pair
    held: Pair
    foreign: Tensor


def mnist(images: int, *, test: bool, tested: int = 10_000, validation: int = 3000, foreign: int = 3000) -> Data:
    """Load the first `images` training images, and the last `validation` ones or `tested` test images to measure on."""
    train = pb.data.load("mnist", "train", val_fraction=0.0)
    held = pb.data.load("mnist", "test")[:tested] if test else train[len(train) - validation :]
    split = "test" if test else "train"
    other = pb.data.load("fashion-mnist", split, mean="mnist", std="mnist", val_fraction=0.0)
    return Data(train[:images], held, other[:foreign][0])


def measures(net: Any, data: Data, propagation: str | None = "sample", samples: int = SAMPLES) -> dict[str, Any]:
    """Measure accuracy, NLL, calibration, out-of-distribution detection and the health of the stds."""
    x, y = data.held
    inside, outside = (pb.predict(net, part, samples, propagation, batch_size=BATCH) for part in (x, data.foreign))
    found = pb.metrics.Classification(10)
    found.update(inside.mean, y, inside.epistemic)
    kept = {key: value for key, value in found.compute().items() if key in ("accuracy", "nll", "ece", "brier")}
    scores = {"maximum": lambda p: -p.mean.max(1).values, "entropy": lambda p: p.entropy, "mi": lambda p: p.epistemic}
    row = {
        **kept,
        "calibrated nll": calibrated_nll(inside.mean, y),
        "epistemic share": float(inside.epistemic.mean() / inside.entropy.mean()),
        **{f"auroc {name}": ood_scores(of(inside), of(outside))["auroc"] for name, of in scores.items()},
    }
    rounded: dict[str, Any] = {key: round(value, 5) for key, value in row.items()}
    return {**rounded, "health": asdict(pb.health(net))}


def keep(rows: Rows, name: str, make: Callable[[], dict[str, Any]]) -> None:
    """Make and write a row with its CPU seconds, unless it exists."""
    if name not in rows:
        begun = time.process_time()
        row = make()
        rows.keep(name, {**row, "seconds of CPU": round(time.process_time() - begun, 1)})
