"""Compare PBN's selection rules by rate, with learned stds, on LeNet-5.

python benchmarks/selection.py [--seeds 3] [--only PATTERN] [--validation]

A deterministic network is trained for each seed. Every row continues from it for the same number of epochs with a
different set of random weights. "trained on" is the control without stds. Rows are written to results/selection.json
(with --validation to selection-choose.json, on held-out training images, to choose settings); finished rows are not run
again.
"""

from __future__ import annotations

import argparse
import re
import warnings
from typing import Any

import torch

import pocketbayes as pb
import trial
from measure import Rows

IMAGES, TESTED, FOREIGN = 10_000, 3000, 2000
START: dict[str, Any] = {"epochs": 6, "batch_size": 100, "lr": 1e-3, "schedule": "cosine"}
TRAINING: dict[str, Any] = {"epochs": 3, "batch_size": 100, "lr": 1e-3, "std_lr": 5e-2, "schedule": "cosine"}
METHOD: dict[str, Any] = {
    "prior": "empirical",
    "beta": 0.05,
    "beta_start": None,
    "annealing": "constant",
    "train_samples": 1,
    "rho_mean": -4.0,
    "sensitivity_batches": 20,
}
RULES = ("gradient", "squared", "output", "curvature", "random")
RATES = (0.001, 0.01, 0.05, 0.2)
SETTINGS = {
    "model": "lenet5",
    "images": IMAGES,
    "tested": TESTED,
    "foreign": FOREIGN,
    "start": START,
    "training": TRAINING,
    "method": METHOD,
}


def methods() -> dict[str, pb.Method]:
    """Return the methods, middle rates first; a single layer limits the number of random weights."""
    rows: dict[str, pb.Method] = {"trained on": pb.Deterministic(), "all weights": pb.PBN(rate=1.0, **METHOD)}
    for rate in sorted(RATES, key=lambda rate: abs(rate - 0.05)):
        for rule in RULES:
            rows[f"{rule}, rate {rate:g}"] = pb.PBN(rate=rate, sensitivity=rule, **METHOD)
    for rule in ("gradient", "random"):
        rows[f"{rule}, rate 0.95"] = pb.PBN(rate=0.95, sensitivity=rule, **METHOD)
    rows["first-layer, rate 0.001"] = pb.PBN(rate=0.001, sensitivity="first-layer", **METHOD)
    for rate in (0.001, 0.01):
        rows[f"last-layer, rate {rate:g}"] = pb.PBN(rate=rate, sensitivity="last-layer", **METHOD)
    return rows


def tried() -> dict[str, pb.Method]:
    """Return the settings to choose from, at a rate where stds matter."""
    rows: dict[str, pb.Method] = {}
    for beta in (0.02, 0.05, 0.2):
        for rho in (-4.0, -3.0):
            rows[f"random, beta {beta:g}, rho {rho:g}"] = pb.PBN(
                rate=0.2, sensitivity="random", **{**METHOD, "beta": beta, "rho_mean": rho}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--validation", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="stds not learned")
    rows = Rows("selection-choose" if arguments.validation else "selection", {"settings": SETTINGS})
    data = trial.mnist(IMAGES, test=not arguments.validation, tested=TESTED, foreign=FOREIGN)
    for seed in range(arguments.seeds):
        names = {
            f"{name}, seed {seed}": method
            for name, method in (tried if arguments.validation else methods)().items()
            if re.search(arguments.only, name)
        }
        if all(name in rows for name in names):
            continue
        torch.manual_seed(seed)
        start = pb.fit("map", pb.models.build("lenet5"), data.train, seed=seed, progress=False, **START)
        for name, method in names.items():

            def row(method: pb.Method = method, start: Any = start, seed: int = seed) -> dict[str, Any]:
                settings = {k: v for k, v in TRAINING.items() if k != "std_lr" or isinstance(method, pb.PBN)}
                net = pb.fit(method, start, data.train, seed=seed, progress=False, **settings)
                found = trial.measures(net, data)
                if isinstance(net, pb.Network) and isinstance(net.posterior, pb.posteriors.Partial):
                    found["random weights"] = net.posterior.noise_size
                    found["fractions"] = {key: round(value, 4) for key, value in net.posterior.fractions().items()}
                    std = net.posterior.moments()[1].detach()
                    found["median std"] = float(std[std > 0].median())
                return found

            trial.keep(rows, name, row)


if __name__ == "__main__":
    main()
