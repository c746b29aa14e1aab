"""Ablate 2DGBNN on LeNet-300-100 with learned stds.

python benchmarks/learned_plane.py [--seeds 3] [--only PATTERN]

For each seed, a mean-field network is trained with local reparameterisation until its stds have moved; every row then
shares its weights and trains the shared network. The name of a row states its difference from "whole". `moved` is the
distance by which stage 3 moves the Gaussians. Rows are written to results/learned-plane.json; finished rows are not run
again.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
import trial
from measure import Rows
from pocketbayes.methods import make

IMAGES = 10_000
FIRST: dict[str, Any] = {"epochs": 8, "batch_size": 125, "lr": 1e-3, "std_lr": 1e-2, "schedule": "cosine"}
VI: dict[str, Any] = {"prior": "empirical", "beta": 0.05, "annealing": "warm-up", "std_init": 0.02}
WHOLE: dict[str, Any] = {
    "k": 256, "iterations": 30, "tau_w": "auto", "gradient_fraction": 0.01, "n_min": 30, "ellipse": "nearest",
    "merge": "moments", "tau_d": 1e-5, "tau_g": 0.15, "tau_v": 1e-3, "draw": "independent",
    "prior": "normal", "prior_std": 0.1, "beta": 0.01, "gradient_batches": 20,
}  # fmt: skip
SHARED: dict[str, Any] = {"epochs": 2, "batch_size": 125, "lr": 1e-4, "std_lr": 1e-3}
CHANGES: dict[str, dict[str, Any]] = {
    "whole": {},
    "without stage 3": {},
    "no merging": {"merge": None},
    "no ellipses": {"ellipse": None},
    "no outliers": {"tau_w": None, "gradient_fraction": 0.0},
    "one draw per Gaussian": {"draw": "shared"},
}
BITS = (8, 4, 2, 1)
SETTINGS = {"model": "lenet300", "images": IMAGES, "first": FIRST, "vi": VI, "whole": WHOLE, "shared": SHARED}


def shared(net: pb.Network, name: str, data: trial.Data, seed: int) -> pb.Network:
    settings = {**SHARED, "epochs": 0} if name == "without stage 3" else SHARED
    method = pb.WeightSharing(**{**WHOLE, **CHANGES[name]})
    found = pb.fit(method, net, data.train, seed=seed, progress=False, **settings)
    assert isinstance(found, pb.Network)
    return found


def counts(net: pb.Network) -> dict[str, Any]:
    """Return the counts of the posterior and the file."""
    with tempfile.TemporaryDirectory() as folder:
        row: dict[str, Any] = {
            "bytes": pb.save(net, Path(folder) / "row.pocket"),
            "trainable": pb.census(net).trainable,
        }
    posterior = net.posterior
    if isinstance(posterior, pb.posteriors.Shared):
        row |= {
            "gaussians": posterior.gaussians,
            "outliers": posterior.outliers,
            "ellipse points": posterior.blends,
            "index bits": posterior.index_bits(),
        }
    return row


def moved(before: pb.Network, after: pb.Network) -> dict[str, float]:
    """Compare the Gaussians of the same plane before and after stage 3: medians over them."""
    first, last = before.posterior, after.posterior
    assert isinstance(first, pb.posteriors.Shared)
    assert isinstance(last, pb.posteriors.Shared)
    widths = [torch.nn.functional.softplus(each.raw_a.detach()) for each in (first, last)]
    centres = (last.centre_mean - first.centre_mean).detach().abs()
    stds = ((last.centre_std - first.centre_std) / first.centre_std).detach().abs()
    return {
        "centre, in widths": float((centres / widths[0]).median()),
        "width, relative": float((widths[1] / widths[0] - 1).abs().median()),
        "std, relative": float(stds.median()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="stds not learned")
    rows = Rows("learned-plane", {"settings": SETTINGS})
    data = trial.mnist(IMAGES, test=True)
    names = ["mean-field", *CHANGES, *(f"sigma bits {bits}" for bits in BITS)]
    for seed in range(arguments.seeds):
        if all(f"{name}, seed {seed}" in rows for name in names if re.search(arguments.only, name)):
            continue
        torch.manual_seed(seed)
        method = pb.MeanFieldVI(propagation="local", **VI)
        start = pb.fit(method, pb.models.build("lenet300"), data.train, seed=seed, progress=False, **FIRST)
        assert isinstance(start, pb.Network)
        done: dict[str, pb.Network] = {}

        def row(name: str, seed: int = seed, start: pb.Network = start, done: Any = done) -> dict[str, Any]:
            if name in CHANGES:
                done[name] = net = shared(start, name, data, seed)
            elif name.startswith("sigma"):
                net = pb.bayesianize(start, make("int8", sigma_bits=int(name.split()[-1])))
                net.likelihood = start.likelihood
            else:
                net = start
            found = {**trial.measures(net, data), **counts(net)}
            if name == "without stage 3" and "whole" in done:
                found["moved"] = moved(net, done["whole"])
            return found

        for name in names:
            if re.search(arguments.only, name):
                trial.keep(rows, f"{name}, seed {seed}", lambda name=name: row(name))  # type: ignore[misc]


if __name__ == "__main__":
    main()
