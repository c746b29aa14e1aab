"""Draw the figures of docs/methods/ssvi.md from results/ssvi-*.json; figures without data are skipped.

python benchmarks/ssvi_figures.py
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from measure import Rows, draw
from paper_figures import sparsity

MEASURES = {"accuracy": "accuracy", "nll": "NLL"}
FIVE = ("magnitude", "abs-mean", "abs-snr", "exp-mean", "exp-snr")
"""snr removes the same weights as abs-snr."""


def collected(rows: dict[str, Any], pattern: str, measure: str) -> dict[str, dict[float, list[float]]]:
    """Return the values of all seeds by the pattern's `name` and number `x`."""
    found: dict[str, dict[float, list[float]]] = {}
    for row, values in rows.items():
        if match := re.fullmatch(pattern, row):
            found.setdefault(match["name"], {}).setdefault(float(match["x"]), []).append(values[measure])
    return found


def density() -> Any:
    rows = Rows("ssvi-mnist")
    pattern = r"(?P<name>RigL|SSVI (?:abs-snr|magnitude|exp-snr)), density (?P<x>[\d.]+), seed \d"
    curves = {label: collected(rows, pattern, key) for key, label in MEASURES.items()}
    dense = {
        label: {"dense VI": [row[key] for name, row in rows.items() if name.startswith("dense VI")]}
        for key, label in MEASURES.items()
    }
    return sparsity.density_curves(curves, dense) if curves["accuracy"] else None


def overlap() -> tuple[list[int], np.ndarray] | None:
    """Return the steps and the mean matrices of the five criteria over seeds, (steps, 5, 5)."""
    rows = list(Rows("ssvi-overlap").values())
    if not rows:
        return None
    chosen = [rows[0]["criteria"].index(name) for name in FIVE]
    matrices = np.mean([row["iou"] for row in rows], axis=0)
    return rows[0]["steps"], matrices[:, chosen][:, :, chosen]


def matrices() -> Any:
    if (found := overlap()) is None:
        return None
    steps, iou = found
    times = {"start": 0, "middle": len(steps) // 2, "end": len(steps) - 1}
    return sparsity.overlap_matrices(
        {f"{name} (step {steps[place]})": iou[place].tolist() for name, place in times.items()}, FIVE
    )


def over_training() -> Any:
    if (found := overlap()) is None:
        return None
    steps, iou = found
    pairs = {f"{FIVE[i]}, {FIVE[j]}": iou[:, i, j].tolist() for i in range(len(FIVE)) for j in range(i + 1, len(FIVE))}
    pairs = dict(sorted(pairs.items(), key=lambda item: -item[1][-1]))
    return sparsity.overlap_over_training(steps, pairs)


def layers() -> Any:
    rows = Rows("ssvi-cifar10")
    runs = {name.removesuffix(", seed 0"): row["densities"] for name, row in rows.items()
            if re.fullmatch("SSVI.*seed 0", name)}  # fmt: skip
    return sparsity.layer_densities(runs) if runs else None


FIGURES = {
    "ssvi-density": density,
    "ssvi-overlap": matrices,
    "ssvi-overlap-training": over_training,
    "ssvi-layers": layers,
}


if __name__ == "__main__":
    draw(FIGURES)
