"""Tables of studies (`pocketbayes reproduce`): a row per method, a column per metric, means over seeds."""

from __future__ import annotations

import math
import re
import statistics
from typing import Any

import numpy as np

from pocketbayes.inference.metrics import dee
from table_parts import Group, Result, Table, Tables, mean, spread

MEASURES = {
    "accuracy": ("accuracy", 100, 2),
    "miou": ("mean IoU", 100, 1),
    "nll": ("NLL", 1, 3),
    "calibrated_nll": ("calibrated NLL", 1, 3),
    "ece": ("ECE", 1, 3),
    "calibrated_ece": ("calibrated ECE", 1, 3),
    "brier": ("Brier", 1, 3),
    "corruption accuracy": ("accuracy, corrupted", 100, 1),
    "epistemic_share": ("epistemic share", 1, 3),
}
"""Heading, factor and digits of each column, by key."""
SPREAD = ("accuracy", "miou", "nll")
"""Metrics that are shown with their std over seeds."""
CLEAR = 2
"""Stds over seeds by which several networks must beat one before rows are measured in networks."""
Seeds = dict[str, dict[str, Any]]
"""The results of a row by seed."""


def study(result: Result) -> Table:
    """Return all metrics of a classification study, with CPU times relative to the row "map"."""
    rows = rows_of(result)
    every = [figures for seeds in rows.values() for figures in seeds.values()]
    shown = {key: look for key, look in MEASURES.items() if all(key in figures for figures in every)}
    outside = [key for key in every[0] if key.startswith("auroc ")]
    healthy = any("health" in figures for figures in every)
    head = ["", *(name for name, _, _ in shown.values()), *(f"AUROC, {key[6:]}" for key in outside)]
    curve = ensemble_curve(rows) if "calibrated_nll" in shown else []
    head += ["DEE"] if curve else []
    head += ["stds"] if healthy else []
    head += ["bytes", "values", "training, x map", "prediction, x map", "seeds"]
    lines = []
    for name, seeds in rows.items():
        group = list(seeds.values())
        cells = []
        for key, (_, scale, digits) in shown.items():
            values = [scale * figures[key] for figures in group]
            cells.append(spread(values if key in SPREAD else [statistics.fmean(values)], digits))
        cells += [f"{mean(group, key):.3f}" for key in outside]
        cells += [equivalent(group, curve)] if curve else []
        cells += [stds(group)] if healthy else []
        cells += [f"{round(mean(group, key)):,}" for key in ("bytes", "values")]
        cells += [ratio(seeds, rows.get("map", {}), key) for key in ("train_seconds", "predict_seconds")]
        lines.append([name, *cells, str(len(seeds))])
    return head, lines


def ensemble_curve(rows: dict[str, Seeds]) -> list[float]:
    """Return the calibrated NLL of 1, 2, ... independent networks, interpolated between "map" and "ensemble of N"."""
    sizes = {"map": 1} | {name: int(name.split()[-1]) for name in rows if re.fullmatch(r"ensemble of \d+", name)}
    points = {size: mean(list(rows[name].values()), "calibrated_nll") for name, size in sizes.items() if name in rows}
    if len(points) < 2 or 1 not in points:
        return []
    plain = [figures["calibrated_nll"] for figures in rows["map"].values()]
    if len(plain) > 1 and points[1] - min(points.values()) < CLEAR * statistics.stdev(plain):
        return []
    return list(np.interp(range(1, max(points) + 1), sorted(points), [points[size] for size in sorted(points)]))


def equivalent(group: Group, curve: list[float]) -> str:
    """Return the deep ensemble equivalent of a row."""
    worth = dee(mean(group, "calibrated_nll"), curve)
    return f"{worth:.1f}" if math.isfinite(worth) else f"> {len(curve)}"


def stds(group: list[dict[str, Any]]) -> str:
    """Return whether the stds of a row have learned and how far they moved; empty without stds."""
    known = [figures["health"] for figures in group if figures.get("health", {}).get("learned") is not None]
    if not known:
        return ""
    moved = statistics.fmean(health["std_movement"] for health in known)
    verdict = "learned" if all(health["learned"] for health in known) else "not learned"
    return f"{verdict} ({100 * moved:.0f} %)"


def regression(results: Result) -> Table:
    """Return RMSE and log-likelihood with standard errors on several data sets, and bytes on the first."""
    sets = {name.partition("-")[2]: rows_of(result) for name, result in results.items()}
    methods = list(dict.fromkeys(method for rows in sets.values() for method in rows))
    lines = []
    for method in methods:
        found = [list(rows.get(method, {}).values()) for rows in sets.values()]
        cells = [" / ".join(error(group, key) for key in ("rmse", "log_likelihood")) for group in found]
        sizes = [round(mean(group, "bytes")) for group in found if group]
        lines.append([method, *cells, f"{sizes[0]:,}"])
    heads = [f"{name}, {min(map(len, rows.values()))} splits" for name, rows in sets.items()]
    return ["RMSE / log-likelihood", *heads, f"bytes, {next(iter(sets))}"], lines


def rows_of(result: Result) -> dict[str, Seeds]:
    """Return the results of every row that has any."""
    return {name: row["seeds"] for name, row in result["rows"].items() if row["seeds"]}


def error(group: Group, key: str) -> str:
    """Return the mean over splits and its standard error."""
    return spread([figures[key] for figures in group], 2, error=True) if group else ""


def ratio(seeds: Seeds, reference: Seeds, key: str) -> str:
    """Return the median ratio to the reference of the same seed; empty if one of them is missing."""
    pairs = [(figures[key], reference.get(seed, {}).get(key)) for seed, figures in seeds.items() if key in figures]
    found = [ours / theirs for ours, theirs in pairs if theirs]
    return f"{statistics.median(found):.1f}" if found else ""


TABLES: Tables = {
    **{name: (name, study) for name in ("digits", "mnist-lenet300", "cifar10-resnet20", "camvid")},
    "uci": ("uci-*", regression),
}
