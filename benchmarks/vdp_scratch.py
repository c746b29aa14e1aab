"""Measure VDP++ from scratch on LeNet-5 with learned stds, against controls: accuracy, pruning, noise, calibration.

python benchmarks/vdp_scratch.py --data-dir DATA [--seeds 5] [--only PATTERN] [--validation]

The deterministic network, VDP++ with either loss, and the deterministic network with a constant std, which shows the
effect of noise alone. Rows are written to results/vdp-scratch.json (with --validation to vdp-scratch-choose.json, on
held-out training images); finished rows are not run again. `tests` are computed from the rows at the end.
"""

from __future__ import annotations

import argparse
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

import pocketbayes as pb
import trial
from measure import Rows
from pocketbayes.inference import curves, explain, statistics

IMAGES, VALIDATION, PRUNED, NOISY, FULL, EXPLAINED = 6000, 2000, 5000, 1000, 8, 100
TRAINING: dict[str, Any] = {"epochs": 12, "batch_size": 64, "lr": 1e-3, "schedule": "cosine"}
STD_LR = 1e-2
METHOD: dict[str, Any] = {"beta": 0.3, "prior_std": 0.1, "std_init": 0.05, "bayesian_bias": True}
GAUSSIAN_BETA = 0.3
CONSTANT_STD = 0.02
SETTINGS = {"model": "lenet5", "images": IMAGES, "training": TRAINING, "std_lr": STD_LR, "method": METHOD}
SETTINGS |= {"constant std": CONSTANT_STD, "beta of the gaussian loss": GAUSSIAN_BETA}
NAMES = ("map", "vdp, cross-entropy", "vdp, gaussian", "map + constant std")


class Study:
    """The data, the rows, and the deterministic network of a seed."""

    def __init__(self, data_dir: Path, validation: bool) -> None:
        self.rows = Rows("vdp-scratch-choose" if validation else "vdp-scratch", {"settings": SETTINGS})
        self.data = trial.mnist(IMAGES, test=not validation, validation=VALIDATION)
        train = pb.data.load("mnist", "train", data_dir, val_fraction=0.0)
        self.validation = train[len(train) - VALIDATION :]
        self.pictures = pb.data.load("mnist", "test", data_dir)
        self.plain: pb.Network | None = None

    def fit(self, method: pb.Method, seed: int, **settings: Any) -> pb.Network:
        torch.manual_seed(seed)
        model = pb.models.build("lenet5")
        net = pb.fit(method, model, self.data.train, seed=seed, progress=False, **TRAINING, **settings)
        assert isinstance(net, pb.Network)
        return net

    def network(self, name: str, seed: int) -> pb.Network:
        if name.startswith("vdp"):
            gaussian = name.startswith("vdp, gaussian")
            beta = re.search(r"beta ([\d.]+)", name)
            settings = {**METHOD, "beta": float(beta[1]) if beta else GAUSSIAN_BETA if gaussian else METHOD["beta"]}
            return self.fit(
                pb.VDP(loss="gaussian-nll" if gaussian else "cross-entropy", **settings), seed, std_lr=STD_LR
            )
        self.plain = self.plain if self.plain is not None else self.fit(pb.Deterministic(), seed)
        if name == "map":
            return self.plain
        net = pb.bayesianize(self.plain, "vdp", std_init=CONSTANT_STD)
        net.likelihood = pb.Categorical()
        return net

    def row(self, name: str, seed: int) -> dict[str, Any]:
        net = self.network(name, seed)
        how = "mean" if name == "map" else "moments"
        row = trial.measures(net, self.data, how)
        calibrated = pb.calibrate(net, self.validation)
        row["nll after calibrate"] = trial.measures(calibrated, self.data, how)["nll"]
        some = tuple(part[:PRUNED] for part in self.data.held)
        criteria = ("magnitude",) if name == "map" else ("magnitude", "snr")
        quiet: dict[str, Any] = {"progress": False, "batch_size": trial.BATCH}
        row["pruning"] = {by: curves.pruning_curve(net, some, by=by, propagation="mean", **quiet) for by in criteria}
        few = self.pictures.take(torch.arange(NOISY))
        row["noise"] = curves.noise_curve(net, few, propagation=how)
        if seed == 0 and name == "vdp, cross-entropy":
            fewer = self.pictures.take(torch.arange(FULL))
            both = [curves.noise_curve(net, fewer, propagation=way) for way in ("moments", "moments-full")]
            variances = [[point["variance"] for point in curve] for curve in both]
            row["variance by moments and by full covariance"] = variances
            row["spearman with full covariance"] = float(spearmanr(*variances)[0])
        if seed == 0:
            x = self.data.held[0][:EXPLAINED]
            row["infidelity"] = explain.infidelity(net, x, propagation=how).tolist()
            row["sensitivity-max"] = explain.sensitivity_max(net, x, propagation=how).tolist()
        return row

    def tests(self, seeds: int) -> None:
        """Return the ANOVA of accuracy, and paired t-tests over seeds of accuracy below and above 90 % pruned."""
        found = {name: [self.rows[f"{name}, seed {seed}"] for seed in range(seeds)] for name in NAMES}
        trained = NAMES[:3]
        accuracy = statistics.anova({name: [row["accuracy"] for row in found[name]] for name in trained})
        result: dict[str, Any] = {"anova": {"f": accuracy.f, "p": accuracy.p, "seeds": seeds}, "pruning": {}}
        for name in trained[1:]:
            for title, low, high in (("up to 90 %", 0.0, 0.9), ("above 90 %", 0.9, 1.0)):
                ours, plain = (
                    [_mean_accuracy(row["pruning"]["magnitude"], low, high) for row in found[each]]
                    for each in (name, "map")
                )
                result["pruning"][f"{name}, {title}"] = vars(statistics.paired_t(ours, plain))
        first = {name: found[name][0] for name in trained}
        result["explanations"] = {
            f"{measure}: {name}": vars(statistics.paired_t(first[name][measure], first["map"][measure]))
            for measure in ("infidelity", "sensitivity-max")
            for name in trained[1:]
        }
        self.rows.keep("tests", result)


def _mean_accuracy(curve: list[dict[str, float]], low: float, high: float) -> float:
    values = [point["accuracy"] for point in curve if low < point["pruned"] <= high]
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--validation", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="stds not learned")
    study = Study(arguments.data_dir, arguments.validation)
    tried = [f"vdp, gaussian, beta {beta:g}" for beta in (0.3, 0.03, 0.003)]
    for seed in range(1 if arguments.validation else arguments.seeds):
        study.plain = None
        for name in tried if arguments.validation else NAMES:
            if re.search(arguments.only, name):
                trial.keep(study.rows, f"{name}, seed {seed}", lambda name=name, seed=seed: study.row(name, seed))  # type: ignore[misc]
    if not arguments.validation:
        study.tests(arguments.seeds)


if __name__ == "__main__":
    main()
