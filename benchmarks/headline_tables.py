"""The table and the figure of README: one network, ensembles and their coded files, ResNet-20 on CIFAR-10.

python benchmarks/headline_tables.py draws docs/figures/headline.png; tables.py writes the table.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

from ensemble_tables import coded_rows
from measure import FIGURES, RESULTS
from pocketbayes.inference.metrics import dee
from pocketbayes.reporting.figures.style import PALETTE, canvas, save
from table_parts import Result, Table, Tables

KEYS = ("accuracy", "nll", "calibrated_nll", "svhn_auroc")


LEFT_OUT = {
    *(f"one network, coded, {size} kB, no training" for size in (80, 76, 40)),
    *(f"one network, coded, {size} kB, 300 steps" for size in (76, 50)),
    "2 networks, coded",
}
"""Points that only the figure shows."""
SHOWN = "5 networks, coded"
"""The row that the sentence describes."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: The label.
        kind: "fp32", "control", "one" or "members"; the figure draws rows of one kind as a curve.
        bytes: The size of the file.
        figures: The metrics by name; metrics that were not measured are missing.
        seeds: The number of runs that the metrics are averaged over.
    """

    name: str
    kind: str
    bytes: float
    figures: dict[str, float]
    seeds: int = 1


def rows_of(results: Result) -> list[Row]:
    """Return the rows that have been measured."""
    given = results.get("yardstick", {}).get("rows", {})
    members = results.get("members", {}).get("rows", {})
    rows = []
    if "map" in given:
        one = _renamed(given["map"])
        size = given["map"]["bytes"]
        rows.append(Row("one FP32 network", "fp32", size, one))
        rows.append(Row("+ temperature", "control", size, {**one, "nll": one["calibrated_nll"]}))
        if control := given.get("map + constant std"):
            rows.append(Row("+ constant std (control)", "control", control["bytes"], _renamed(control)))
        for count in ("2", "5", "10"):
            if count in members:
                name = f"{count} independent FP32 networks"
                rows.append(Row(name, "fp32", int(count) * size, members[count], members[count]["subsets"]))
    rows += _coded(results.get("pocket-codes", {}).get("rows", {}))
    return rows + [
        Row(f"{count} networks, coded", "members", row["bytes"], row)
        for count, row in coded_rows(results.get("coded-members", {}))
        if count > 1
    ]


def _renamed(row: dict[str, Any]) -> dict[str, float]:
    return {**row, "svhn_auroc": row["svhn_max_probability_auroc"]}


def _coded(rows: dict[str, dict[str, Any]]) -> list[Row]:
    """Group the coded files of ResNet-20 by budget and steps, means over seeds."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows.values():
        if row["network"] == "resnet20" and "budget" in row:
            groups.setdefault((row["budget"], row["steps"]), []).append(row)
    made = []
    for (budget, steps), group in sorted(groups.items(), reverse=True):
        means = {key: statistics.fmean(row[key] for row in group) for key in (*KEYS[:3], "bytes")}
        name = f"one network, coded, {budget // 1000} kB, " + (f"{steps} steps" if steps else "no training")
        made.append(Row(name, "one", means.pop("bytes"), means, len(group)))
    return made


def headline(results: Result) -> Table:
    """Return the table: bytes, accuracy, raw and calibrated NLL, deep ensemble equivalent, AUROC."""
    curve = results.get("members", {}).get("curve", [])
    rows = []
    for row in rows_of(results):
        if row.name in LEFT_OUT:
            continue
        worth = dee(row.figures["calibrated_nll"], curve) if curve else math.nan
        cells = [f"{row.bytes:,.0f}", f"{100 * row.figures['accuracy']:.2f}"]
        cells += [f"{row.figures[key]:.3f}" if key in row.figures else "" for key in KEYS[1:3]]
        cells += ["10+" if math.isinf(worth) else f"{worth:.1f}"]
        cells += [f"{row.figures['svhn_auroc']:.3f}" if "svhn_auroc" in row.figures else "", str(row.seeds)]
        rows.append([row.name, *cells])
    head = ["", "bytes", "accuracy", "NLL", "calibrated NLL", "DEE", "AUROC, SVHN", "runs"]
    return head, rows


def sentence(results: Result) -> str:
    """Return the sentence on a coded ensemble."""
    rows, curve = rows_of(results), results["members"]["curve"]
    one = next(row for row in rows if row.name == "one FP32 network")
    best = next(row for row in rows if row.name == SHOWN)
    worth = dee(best.figures["calibrated_nll"], curve)
    return (
        f"**{best.name.split(',')[0].capitalize()} in {best.bytes / 1000:.0f} kB**, compressed without training: "
        f"{100 * best.figures['accuracy']:.1f} % accuracy and an NLL of {best.figures['nll']:.3f} on CIFAR-10. "
        f"This matches {worth:.1f} independent FP32 networks, in {100 * best.bytes / one.bytes:.0f} % of the bytes of "
        f"one ({100 * one.figures['accuracy']:.1f} % accuracy, NLL {one.figures['nll']:.3f}).\n"
    )


def draw(results: Result) -> None:
    """Draw calibrated NLL against bytes."""
    rows = rows_of(results)
    figure, panels = canvas(size=(7.2, 4.2))
    axes = panels.flat[0]
    looks = {
        "fp32": ("independent FP32 networks", PALETTE[6], "o-"),
        "one": ("one network, coded", PALETTE[0], "s-"),
        "members": ("several networks, coded", PALETTE[1], "D-"),
    }
    for kind, (label, colour, mark) in looks.items():
        points = sorted((row.bytes / 1000, row.figures["calibrated_nll"]) for row in rows if row.kind == kind)
        if points:
            axes.plot(*zip(*points), mark, color=colour, label=label)
    axes.set(xscale="log", xlabel="bytes of the file, kB (log scale)", ylabel="calibrated NLL, 10 000 test images")
    axes.set_title("ResNet-20 on CIFAR-10")
    axes.legend()
    print(save(figure, FIGURES / "headline.png"))


TABLES: Tables = {"headline": ("*", headline), "headline-sentence": ("*", sentence)}

if __name__ == "__main__":
    draw({path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")})
