"""Measure how cost scales: with weights and Gaussians in stage 2 of 2DGBNN, and with samples, density and batch size.

python benchmarks/growth.py [--sweep weights] [--sweep gaussians] [--sweep samples] [--sweep density] [--sweep batch]

Times are CPU seconds, which also hold on a shared machine. Stage 2 is measured by `plane.py`, each size in a separate
process on all processors, with their seconds added up; the rest in this process with one thread, as interleaved
medians. Sizes are in ascending cost, so the exponent of the last three describes the far end. Each finished sweep is
written to results/growth.json; other sweeps in the file are kept.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
import sparse
from measure import Rows, interleaved
from networks import classifier
from plane import surveys
from steps import Action

WEIGHTS = tuple(round(10 ** (half / 2)) for half in range(10, 17))
GAUSSIANS = (16, 64, 256, 1000, 2000, 4000, 6000)
SAMPLES = (1, 3, 10, 30, 100)
DENSITIES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
BATCHES = (1, 4, 16, 64, 256, 1024)
SHAPE = (1, 28, 28)


def exponent(places: Sequence[float], values: Sequence[float]) -> float:
    """Return b of the least-squares fit value = a place^b."""
    return statistics.linear_regression([math.log(p) for p in places], [math.log(v) for v in values]).slope


def sweep(places: Sequence[float], conditions: str, **costs: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the curves of each cost (`seconds`, `megabytes`) with their exponents."""
    return {
        "conditions": conditions,
        "places": list(places),
        "costs": {
            cost: {
                name: {
                    "values": list(values),
                    "exponent": exponent(places, values),
                    "exponent, last three": exponent(places[-3:], values[-3:]),
                }
                for name, values in curves.items()
            }
            for cost, curves in costs.items()
        },
    }


def by_weights() -> dict[str, Any]:
    rows = surveys([(n, 2000) for n in WEIGHTS])
    seconds, megabytes = ([row[key] for row in rows] for key in ("cpu_seconds", "megabytes_above_the_weights"))
    return sweep(WEIGHTS, "2000 Gaussians", seconds={"stage 2": seconds}, megabytes={"stage 2": megabytes})


def by_gaussians() -> dict[str, Any]:
    seconds = [row["cpu_seconds"] for row in surveys([(1_000_000, k) for k in GAUSSIANS])]
    return sweep(GAUSSIANS, "a million weights", seconds={"stage 2": seconds})


def cpu_seconds(grid: Mapping[str, Sequence[Action]], rounds: int) -> dict[str, list[float]]:
    """Return interleaved medians for every curve and size."""
    actions = {f"{name}|{number}": action for name, row in grid.items() for number, action in enumerate(row)}
    seconds = interleaved(actions, rounds, clock=time.process_time)
    return {name: [seconds[f"{name}|{number}"] for number in range(len(row))] for name, row in grid.items()}


def training_step(net: pb.Network, batch: int) -> Action:
    return sparse.training_step(net, pb.Training(optimizer="sgd", lr=1e-4).make_optimizer(net), *inputs(batch))


def prediction(net: pb.Network, batch: int, samples: int = 30, how: str = "sample") -> Action:
    return sparse.prediction(net, inputs(batch)[0], samples, how)


def inputs(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, *SHAPE), torch.arange(batch) % 10


def by_samples() -> dict[str, Any]:
    grid = {
        f"prediction, {name}": [prediction(net, 128, samples) for samples in SAMPLES]
        for name in ("lenet5", "lenet300")
        for net in [classifier(pb.models.build(name), pb.MeanFieldVI())]
    }
    return sweep(SAMPLES, "batch 128", seconds=cpu_seconds(grid, 5))


def by_density() -> dict[str, Any]:
    model = pb.models.build("mlp", in_features=784, out_features=10, hidden=(1024, 1024))
    methods = [pb.SSVI(density=d) if d < 1 else pb.MeanFieldVI(propagation="local") for d in DENSITIES]
    nets = [classifier(model, method) for method in methods]
    grid = {
        "training step": [training_step(net, 128) for net in nets],
        "prediction, 30 samples": [prediction(net, 128) for net in nets],
    }
    conditions = "a perceptron 784-1024-1024-10, batch 128; density 1 is dense VI"
    return sweep(DENSITIES, conditions, seconds=cpu_seconds(grid, 5))


def by_batch() -> dict[str, Any]:
    net = classifier(pb.models.build("lenet5"), pb.MeanFieldVI())
    grid = {
        "training step": [training_step(net, batch) for batch in BATCHES],
        "prediction, 30 samples": [prediction(net, batch) for batch in BATCHES],
        "prediction, moments": [prediction(net, batch, how="moments") for batch in BATCHES],
        "prediction, linear": [prediction(net, batch, how="linear") for batch in BATCHES],
    }
    return sweep(BATCHES, "LeNet-5", seconds=cpu_seconds(grid, 5))


SWEEPS = {
    "weights": by_weights,
    "gaussians": by_gaussians,
    "samples": by_samples,
    "density": by_density,
    "batch": by_batch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", choices=SWEEPS, action="append")
    chosen = parser.parse_args().sweep or list(SWEEPS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = Rows("growth", key="sweeps", order=SWEEPS)
    for name in chosen:
        rows.keep(name, SWEEPS[name]())


if __name__ == "__main__":
    main()
