"""Draw the figures of README and docs that no benchmark draws: the grid of methods, and NLL against bytes.

python tools/pictures.py

The grid shows each registered method at the storage and propagation of its network after one epoch; the front comes
from the JSON files in benchmarks/results.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.methods import make
from pocketbayes.network import members
from pocketbayes.reporting import figures
from pocketbayes.reporting.figures.tradeoff import pareto

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "figures"
RESULTS = ROOT / "benchmarks" / "results"
STUDIES = ("mnist-lenet300", "cifar10-resnet20")
ONE_PASS = ("map", "rigl", "vdp", "laplace", "laplace, last layer")
STORAGES = {
    "point": "one value per weight",
    "mean-field": "a mean and a std per weight",
    "partial": "all means, few stds",
    "sparse": "few weights, the others are 0",
    "shared": "few Gaussians, an index per weight",
    "rank-1": "values, random factors per unit",
    "low-rank": "means, correlated deviations",
    "dropped": "values and a dropout rate",
    "quantized": "integers with scales",
}
PROPAGATIONS = {
    "mean": "run at the\nposterior mean",
    "sample": "draw all\nweights once",
    "local": "draw noise\nper example",
    "flipout": "flip signs\nper example",
    "moments": "carry mean\nand variance",
    "linear": "linearise at\nthe mean",
}
SAME = {
    **{"trajectory": "low-rank", "kronecker": "low-rank", "row-stds": "mean-field"},
    **{"moments-exact": "moments", "moments-full": "moments"},
}
"""Variants that share the row or column of another storage or propagation."""


def places() -> dict[tuple[str, str], list[str]]:
    """Return the methods by the storage and propagation of a trained network (for ensembles, of a member)."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(64, 8)
    few = {"2dgbnn": {"k": 4, "n_min": 1}}
    found: dict[tuple[str, str], list[str]] = {}
    for name in pb.methods():
        method = make(name, **few.get(name, {}))
        net = members(pb.fit(method, model, (x, (x[:, 0] > 0).long()), epochs=1, progress=False))[0]
        storage, propagation = net.posterior.name, net.propagation
        found.setdefault((SAME.get(storage, storage), SAME.get(propagation, propagation)), []).append(name)
    return found


def grid(found: dict[tuple[str, str], list[str]]) -> Figure:
    """Draw storages down and propagations across; cells with a name are what a method trains with."""
    figure, axes = figures.canvas(size=(9.2, 4.95))
    panel = axes[0, 0]
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    for row, storage in enumerate(STORAGES):
        for column, propagation in enumerate(PROPAGATIONS):
            names = found.get((storage, propagation), [])
            colour = figures.PALETTE[0] if names else figures.PALETTE[5]
            box = {"facecolor": colour, "alpha": 0.9 if names else 0.18, "edgecolor": "white", "linewidth": 3}
            panel.add_patch(_rectangle(column, row, **box))
            text = "\n".join(", ".join(names[start : start + 2]) for start in range(0, len(names), 2))
            panel.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9, color="white")
    panel.set(xlim=(0, len(PROPAGATIONS)), ylim=(len(STORAGES), 0))
    panel.set_xticks([])
    panel.set_yticks([])
    for column, (name, words) in enumerate(PROPAGATIONS.items()):
        panel.text(column + 0.5, -0.68, name, ha="center", va="bottom", fontsize=9, weight="bold")
        panel.text(column + 0.5, -0.12, words, ha="center", va="bottom", fontsize=8)
    for row, (name, words) in enumerate(STORAGES.items()):
        panel.text(-0.06, row + 0.46, name, ha="right", va="bottom", fontsize=9, weight="bold")
        panel.text(-0.06, row + 0.52, words, ha="right", va="top", fontsize=8)
    return figure


def _rectangle(column: int, row: int, **look: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column, row), 1, 1, **look)


def front() -> dict[str, tuple[float, float]]:
    """Return bytes and NLL of one network at many sizes, without those of twice the deterministic NLL."""
    rows = json.loads((RESULTS / "pocket-curve.json").read_text())["rows"]
    most = 2 * rows["deterministic"]["nll"]
    chosen = sorted((row["bytes"], row["nll"], name) for name, row in rows.items() if row["nll"] < most)
    return {(f"2DGBNN, {name}" if "budget" in rows[name] else name): (size, nll) for size, nll, name in chosen}


def study_front(rows: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return mean bytes and calibrated NLL of a study's networks by their number of passes, without outliers.

    Studies from before calibration was measured have the NLL. Other ways to predict with a network are left out.
    """
    found = {}
    for name, row in rows.items():
        if " x " not in name and name != "map + temperature":
            seeds = list(row["seeds"].values())
            key = "calibrated_nll" if "calibrated_nll" in seeds[0] else "nll"
            size, nll = (statistics.fmean(seed[each] for seed in seeds) for each in ("bytes", key))
            one = name in ONE_PASS or name.startswith("map, ")
            found[f"{'one pass' if one else 'several passes'}, {name}"] = (size, nll)
    most = 2 * found["one pass, map"][1]
    return {name: point for name, point in found.items() if point[1] < most}


def main() -> None:
    drawn = {"grid": grid(places()), "pareto": pareto(front(), "bytes of the file", "NLL")}
    for study in STUDIES:
        rows = json.loads((RESULTS / f"{study}.json").read_text())["rows"]
        calibrated = "calibrated_nll" in rows["map"]["seeds"]["0"]
        title = "calibrated NLL" if calibrated else "NLL"
        drawn[f"pareto-{study}"] = pareto(study_front(rows), "bytes of the file", title)
    for name, figure in drawn.items():
        print(figures.save(figure, FOLDER / f"{name}.png"))


if __name__ == "__main__":
    main()
