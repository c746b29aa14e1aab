"""Measure 2DGBNN on CIFAR-10 (pretrained ResNet-20) and on MNIST (from scratch), and draw the figures.

python benchmarks/weight_sharing.py --data-dir DATA --weights DATA/weights/resnet20-12fca82f.th [--only NAME;...]
python benchmarks/weight_sharing.py --data-dir DATA --mnist

Rows are written to results/weight-sharing.json (or -mnist); finished rows are not run again, so the script can be
interrupted. On CIFAR-10 all rows start from one mean-field network around the pretrained weights; it and each row are
trained for 100 steps, on 12 800 augmented images. Main rows use 30 samples and all 10 000 test images; the others use
10 samples and 2000 images, and say so. "main" is trained with learning rate 1e-4; the other rows, whose few Gaussians
each move thousands of weights at once, with 1e-5 and frozen batch norm.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from measure import Rows
from networks import classifier, pretrained_resnet20
from paper_figures.weight_sharing import gaussians_curve, layer_density, plane_lines, view_survey
from pocketbayes import recipes as config
from pocketbayes.data.batches import batches
from pocketbayes.inference.metrics import ood_scores
from pocketbayes.inference.prediction import run_passes
from pocketbayes.propagation import Ask
from pocketbayes.recipes.experiment import run
from pocketbayes.reporting import figures
from pocketbayes.reporting.figures.plane import PlaneView, plane

NAME = "weight-sharing"
KEPT = ("accuracy", "nll", "ece", "brier", "count")
BATCH = 500
"""Numbers of test images."""
PRINTED = {"n_min": 30, "tau_g": 0.15, "tau_v": 1e-3}
MAIN = {"k": 64, "tau_w": 0.3, "gradient_fraction": 0.005, **PRINTED}
PAPER = {"k": 2000, "tau_w": 0.2, "gradient_fraction": 0.01, **PRINTED}

STEPS = {"epochs": 1, "subset": 12_800}

FEW = {"k": 16, "iterations": 0, "tau_w": 0.3, "gradient_fraction": 0.005, "gradient_batches": 50, **PRINTED}
"""K-means alone, for few Gaussians: it keeps the means closer than EM does."""
SHORT = {
    "seed": 0,
    "samples": 10,
    "images": 2000,
    "training": {"lr": 1e-5, "std_lr": 5e-2, "freeze_batch_norm": True},
    **STEPS,
}

ROWS: dict[str, dict[str, Any]] = {
    **{f"main, seed {s}": {"method": MAIN, "seed": s, "samples": 30, "ood": s == 0, **STEPS} for s in range(3)},
    **{f"K = {k}": {"method": {**FEW, "k": k}, **SHORT} for k in (16, 64, 32, 8, 4)},
    **{
        name: {"method": {**FEW, **off}, **SHORT}
        for name, off in {
            "no ellipses": {"ellipse": None},
            "no outliers": {"tau_w": None, "gradient_fraction": 0.0},
            "neither": {"ellipse": None, "tau_w": None, "gradient_fraction": 0.0},
            "EM": {"iterations": 30},
            "tau_w = 0.1": {"tau_w": 0.1},
            "tau_w = 0.2": {"tau_w": 0.2},
            "tau_w = 0.4": {"tau_w": 0.4},
            "tau_w = 0.6": {"tau_w": 0.6},
            "before merging": {"k": 256, "merge": None},
            "after merging": {"k": 256, "tau_d": 1e-4},
        }.items()
    },
    "paper setting": {"method": PAPER, **SHORT},
}


class Bench:
    """The data, the networks that rows start from, and the finished rows."""

    def __init__(self, data_dir: Path, weights: Path, work: Path) -> None:
        self.data_dir, self.work = data_dir, work
        self.rows = Rows(NAME, {"model": "resnet20", "data": "cifar10"})
        self.given = classifier(pretrained_resnet20(weights), pb.Deterministic())
        self.test = self.images("test")

    def images(self, split: str, name: str = "cifar10", **options: Any) -> Any:
        return pb.data.load(name, split, self.data_dir, mean="imagenet", val_fraction=0.0, **options)

    def mean_field(self) -> pb.Network:
        path = self.work / "mean-field.pocket"
        if path.exists():
            return pb.load(path)  # type: ignore[return-value]
        method = pb.MeanFieldVI(std_init="xavier", prior="pretrained", prior_std=0.1)
        train = self.images("train", augment=True, subset=STEPS["subset"])
        net = pb.fit(
            method, self.given, train, epochs=1, lr=1e-4, std_lr=1e-3, batch_size=128, out=self.work / "mean-field"
        )
        pb.save(net, path)
        return net  # type: ignore[return-value]

    def ood(self, net: pb.Network, samples: int) -> dict[str, Any]:
        """Return OOD detection by maximum probability, as in the authors' script, and by entropy."""
        scores = {name: self.scores(net, data, samples) for name, data in self.outside().items()}
        inside = self.scores(net, self.test, samples)
        return {
            name: {score: ood_scores(inside[score], out[score]) for score in inside} for name, out in scores.items()
        }

    def outside(self) -> dict[str, Any]:
        return {name: self.images("test", name, std="imagenet") for name in ("svhn", "cifar100")}

    def scores(self, net: pb.Network, data: Any, samples: int) -> dict[str, torch.Tensor]:
        parts: dict[str, list[torch.Tensor]] = {"max probability": [], "entropy": []}
        for x, _ in batches(data, BATCH):
            summary = run_passes(net, x, Ask(samples=samples)).summary()
            parts["max probability"].append(-summary.mean.max(1).values)
            parts["entropy"].append(summary.entropy)
        return {name: torch.cat(values) for name, values in parts.items()}

    def deterministic(self) -> None:
        if "deterministic" not in self.rows:
            measures = pb.evaluate(self.given, self.test, batch_size=BATCH)
            row = {k: measures[k] for k in KEPT} | {"ood": self.ood(self.given, 1)}
            row["bytes"] = pb.save(self.given, self.work / "deterministic.pocket")
            self.rows.keep("deterministic", row)
        few = f"deterministic, {SHORT['images']} images"
        if few not in self.rows:
            measures = pb.evaluate(self.given, self.images("test", subset=SHORT["images"]), batch_size=BATCH)
            self.rows.keep(few, {k: measures[k] for k in KEPT})

    def run(self, name: str, row: dict[str, Any]) -> None:
        if name in self.rows:
            return
        start = time.perf_counter()
        method = pb.WeightSharing(**row["method"], beta=0.01)
        train = self.images("train", augment=True, subset=row["subset"])
        folder = self.work / name.replace(" ", "-").replace(",", "")
        net = pb.fit(
            method, self.mean_field(), train, epochs=row["epochs"], seed=row["seed"], batch_size=128, out=folder,
            resume=True, **{"lr": 1e-4, "std_lr": 1e-4, **row.get("training", {})},
        )  # fmt: skip
        assert isinstance(net, pb.Network)
        posterior = net.posterior
        assert isinstance(posterior, pb.posteriors.Shared)
        test = self.images("test", subset=row["images"]) if "images" in row else self.test
        measures = pb.evaluate(net, test, samples=row["samples"], batch_size=BATCH)
        result = {k: measures[k] for k in KEPT} | {
            "settings": row,
            **stored(posterior),
            "bytes": pb.save(net, self.work / "row.pocket"),
        }
        if row.get("ood"):
            result["ood"] = self.ood(net, 10)
        self.rows.keep(name, result | {"seconds": round(time.perf_counter() - start)})


def mnist(data_dir: Path, work: Path) -> None:
    """Train LeNet-5 by its recipe, all stages from scratch."""
    recipe = "mnist-lenet5-2dgbnn"
    rows = Rows(f"{NAME}-mnist", {"recipe": recipe})
    for seed in range(3):
        name, folder = f"seed {seed}", work / f"mnist-{seed}"
        if name in rows:
            continue
        outcome = run(config.read(recipe, [f"seed={seed}"]), folder, data_dir=data_dir, progress=False)
        assert isinstance(outcome.net, pb.Network)
        posterior = outcome.net.posterior
        assert isinstance(posterior, pb.posteriors.Shared)
        row = {k: outcome.measures[k] for k in KEPT} | stored(posterior)
        rows.keep(name, row | {"bytes": (folder / "model.pocket").stat().st_size})


def draw(work: Path, folder: Path) -> None:
    """Draw the figures of the method's page from the networks of the rows."""
    start, trained = (pb.load(work / name) for name in ("mean-field.pocket", "main-seed-0/model.pocket"))
    assert isinstance(start, pb.Network)
    assert isinstance(trained, pb.Network)
    mean, std = (part.detach() for part in start.posterior.moments())
    survey = pb.plane.survey(mean, std, settings=pb.plane.PlaneSettings(k=MAIN["k"], tau_w=MAIN["tau_w"]))
    before, after = view_survey(mean, std, survey), PlaneView.of(trained.posterior.plane())
    after = replace(after, cloud=before.cloud)
    views = {"before training, outliers by value": before, "after, outliers by value and gradient": after}
    figures.save(plane(views), folder / "2dgbnn-plane.png")
    figures.save(plane_lines(mean, std), folder / "2dgbnn-lines.png")
    slot = max(start.layout.slots, key=lambda slot: slot.stop - slot.start)
    figures.save(layer_density(mean[slot.start : slot.stop], slot.name), folder / "2dgbnn-density.png")
    rows = Rows(NAME)
    by_k = {name: {**row, "k": row["settings"]["method"]["k"]} for name, row in rows.items() if name.startswith("K = ")}
    same_images = rows[f"deterministic, {SHORT['images']} images"]
    figures.save(gaussians_curve(by_k, same_images), folder / "2dgbnn-k.png")


def stored(posterior: pb.posteriors.Shared) -> dict[str, Any]:
    return {
        "gaussians": posterior.gaussians,
        "outliers": posterior.outliers,
        "ellipse points": posterior.blends,
        "weights": posterior.layout.size,
        "index bits": posterior.index_bits(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--weights", type=Path, help="of the deterministic ResNet-20")
    parser.add_argument("--mnist", action="store_true", help="the rows on MNIST instead")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "pocketbayes-weight-sharing")
    parser.add_argument("--figures", type=Path, help="draw the figures into this folder, from the rows that are done")
    parser.add_argument("--only", help="names of rows, separated by semicolons")
    arguments = parser.parse_args()
    if arguments.figures is not None:
        draw(arguments.work, arguments.figures)
        return
    if arguments.data_dir is None:
        parser.error("--data-dir is needed: the folder that holds the data")
    if arguments.mnist:
        mnist(arguments.data_dir, arguments.work)
        return
    if arguments.weights is None:
        parser.error("--weights is needed: the deterministic network that all rows start from")
    bench = Bench(arguments.data_dir, arguments.weights, arguments.work)
    bench.deterministic()
    for name, row in ROWS.items():
        if arguments.only is None or name in arguments.only.split(";"):
            bench.run(name, row)


if __name__ == "__main__":
    main()
