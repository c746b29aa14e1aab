"""Compare wide and sparse with small and dense: SSVI on wide perceptrons with learned stds, at equal cost.

python benchmarks/wide.py choose,wide,scores [--seeds 3] [--only PATTERN]

- choose: settings, on 3000 held-out training images, one seed.
- wide: MLP 1200-400 at four densities and 2400-800 with the same number of present weights, dense map, dense VI,
  a static mask, RigL and small dense networks with the same number of weights; on the 10 000 test images.
- scores: removal scores and addition rules at one density, with the overlap of the weights that the scores would
remove.

Rows are written to results/wide-SECTION.json; finished rows are not run again.
"""

from __future__ import annotations

import argparse
import itertools
import re
import warnings
from typing import Any

import torch
from torch import nn

import pocketbayes as pb
import trial
from measure import Rows
from peak_memory import peak_memory
from pocketbayes.methods.sparse_training import SparseTraining
from pocketbayes.posteriors.sparse import SCORES
from removal_overlap import removal_overlap
from training_cost import training_bytes

TRAINING: dict[str, Any] = {"epochs": 12, "batch_size": 100, "lr": 2e-3, "std_lr": 2e-3, "schedule": "cosine"}
IMAGES = 10_000
VI: dict[str, Any] = {"prior": "empirical", "beta": 0.02, "annealing": "warm-up"}
STD = 0.02
SPARSE: dict[str, Any] = {"distribution": "erdos-renyi", "mean_init": "scaled", "swap_every": 50}
DENSITIES = (0.01, 0.05, 0.1, 0.5)
WIDE, WIDER = (1200, 400), (2400, 800)
SHORT = {**TRAINING, "epochs": 6, "batch_size": 125}
SCORED_DENSITY = 0.05
SETTINGS = {"training": TRAINING, "images": IMAGES, "vi": VI, "first std": STD, "sparse": SPARSE}


def perceptron(hidden: tuple[int, ...]) -> nn.Module:
    return pb.models.build("mlp", in_features=784, out_features=10, hidden=list(hidden))


def weights(hidden: tuple[int, ...]) -> int:
    widths = (784, *hidden, 10)
    return sum(a * b for a, b in itertools.pairwise(widths))


def small(count: int) -> tuple[int, int]:
    """Return the perceptron of the same proportions, 3 : 1, with the same number of weights."""
    return min(((3 * k, k) for k in range(1, 800)), key=lambda hidden: abs(weights(hidden) - count))


def ssvi(density: float, **settings: Any) -> pb.SSVI:
    return pb.SSVI(**{**SPARSE, **VI, "std_init": STD, "std_spread": 0.0, "density": density, **settings})


def dense_vi(**settings: Any) -> pb.MeanFieldVI:
    return pb.MeanFieldVI(**{**VI, "propagation": "local", "std_init": STD, **settings})


Row = tuple[pb.Method, tuple[int, ...]]


def wide_rows() -> dict[str, Row]:
    """Return the rows, cheap ones first."""
    rows: dict[str, Row] = {}
    full = weights(WIDE)
    for density in DENSITIES:
        count = round(density * full)
        rows[f"SSVI, density {density}"] = (ssvi(density), WIDE)
        rows[f"RigL, density {density}"] = (pb.RigL(**SPARSE, density=density), WIDE)
        rows[f"static mask, density {density}"] = (ssvi(density, static=True), WIDE)
        rows[f"small dense VI, {density}"] = (dense_vi(), small(count))
        rows[f"small dense map, {density}"] = (pb.Deterministic(), small(count))
        if density <= 0.1:
            rows[f"wider SSVI, {density}"] = (ssvi(count / weights(WIDER)), WIDER)
    return {**rows, "dense map": (pb.Deterministic(), WIDE), "dense VI": (dense_vi(), WIDE)}


def chosen_rows() -> dict[str, Row]:
    """Return the settings of SSVI at one density, and of a small dense VI."""
    tried: dict[str, dict[str, Any]] = {
        "beta 0.05": {"beta": 0.05},
        "means as the model's, beta 0.05": {"beta": 0.05, "mean_init": "model"},
        "beta 0.02": {},
        "beta 0.15": {"beta": 0.15},
        "first std 0.05, beta 0.05": {"beta": 0.05, "std_init": 0.05},
    }
    rows: dict[str, Row] = {f"SSVI, {name}": (ssvi(0.05, **changed), WIDE) for name, changed in tried.items()}
    hidden = small(round(0.05 * weights(WIDE)))
    for name in ("beta 0.05", "beta 0.02"):
        rows[f"small dense VI, {name}"] = (dense_vi(**tried[name]), hidden)
    return rows


def score_rows() -> dict[str, Row]:
    rows: dict[str, Row] = {f"removal {score}": (ssvi(SCORED_DENSITY, removal=score), WIDE) for score in SCORES}
    for addition in ("mean", "averaged"):
        rows[f"addition {addition}"] = (ssvi(SCORED_DENSITY, addition=addition), WIDE)
    return rows


def fit(
    method: pb.Method, hidden: tuple[int, ...], data: trial.Data, seed: int, training: dict[str, Any]
) -> pb.Network:
    torch.manual_seed(seed)
    settings = dict(training)
    if not isinstance(method, (pb.SSVI, pb.MeanFieldVI)):
        del settings["std_lr"]
    net = pb.fit(method, perceptron(hidden), data.train, seed=seed, progress=False, **settings)
    assert isinstance(net, pb.Network)
    return net


def costs(net: pb.Network, data: trial.Data) -> dict[str, Any]:
    """Return the bytes kept between steps, and the peak that a step adds."""
    x, y = (part[: TRAINING["batch_size"]] for part in data.train)
    optimizer = pb.Training(optimizer="adamw").make_optimizer(net)

    def step() -> None:
        optimizer.zero_grad()
        (net.likelihood.nll(net(x), y) + net.kl() / IMAGES).backward()  # type: ignore[union-attr, operator]
        optimizer.step()

    net.train()
    step()
    row = {"state bytes": training_bytes(net, optimizer)["total"]}
    optimizer.zero_grad()
    row["peak bytes of a step"] = peak_memory(step)
    net.eval()
    posterior = net.posterior
    if isinstance(posterior, pb.posteriors.Sparse):
        row["weights"] = len(posterior.index)
        row["csr"] = posterior.fast_slots()  # type: ignore[assignment]
        row["swapped"] = int(posterior.swapped)
    else:
        row["weights"] = net.layout.size
    return row


def run(section: str, seeds: int, only: str) -> None:
    rows_of, test, training = {
        "choose": (chosen_rows, False, SHORT),
        "wide": (wide_rows, True, TRAINING),
        "scores": (score_rows, False, SHORT),
    }[section]
    rows = Rows(f"wide-{section}", {"settings": {**SETTINGS, "training": training}})
    data = trial.mnist(IMAGES, test=test)
    for seed in range(1 if section == "choose" else seeds):
        for name, (method, hidden) in rows_of().items():
            if not re.search(only, name):
                continue

            def row(method: pb.Method = method, hidden: tuple[int, ...] = hidden, seed: int = seed) -> dict[str, Any]:
                net = fit(method, hidden, data, seed, training)
                found: dict[str, Any] = {"hidden": hidden, **trial.measures(net, data), **costs(net, data)}
                if section == "scores" and isinstance(method, SparseTraining):
                    found["iou"] = removal_overlap(net.posterior).tolist()  # type: ignore[arg-type]
                return found

            trial.keep(rows, f"{name}, seed {seed}", row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="stds not learned")
    for section in arguments.sections.split(","):
        run(section, arguments.seeds, arguments.only)


if __name__ == "__main__":
    main()
