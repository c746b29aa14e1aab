"""Draws the figures of docs/methods/vdp.md from results/*.json; what is not measured yet is left out.

python benchmarks/propagation_figures.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measure import RESULTS
from pocketbayes import figures
from pocketbayes.figures import propagation

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
METHODS = ("map", "bbb", "vdp", "vdp-full")


def read(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def fidelity() -> Any:
    rows = read("propagation").get("fidelity", {})
    return propagation.fidelity_by_layer({name: row["layers"] for name, row in rows.items()}) if rows else None


def pass_worth() -> Any:
    rows = read("pass-worth").get("quality", {})
    return propagation.pass_worth(rows) if rows else None


def seeds(method: str) -> list[dict[str, Any]]:
    rows = read("vdp").get("rows", {})
    return [row for name, row in rows.items() if name.startswith(f"mnist, {method}, seed")]


def pruning() -> Any:
    curves = {
        title: {
            method: [row["pruning"][by] for row in seeds(method)]
            for method in METHODS
            if seeds(method) and all(by in row["pruning"] for row in seeds(method))
        }
        for by, title in {"magnitude": "by size of the mean", "snr": "by signal-to-noise ratio"}.items()
    }
    return propagation.pruning(curves) if all(curves.values()) else None


def noise() -> Any:
    rows = {method: seeds(method)[0]["noise"] for method in METHODS if seeds(method)}
    return propagation.noise(rows) if rows else None


def explanations() -> Any:
    first = {method: seeds(method)[0] for method in METHODS if seeds(method)}
    measures = {"Infidelity": "infidelity", "Sensitivity-max": "sensitivity-max"}
    return (
        propagation.explanations({title: {m: row[key] for m, row in first.items()} for title, key in measures.items()})
        if first
        else None
    )


FIGURES = {
    "propagation-layers": fidelity,
    "pass-worth": pass_worth,
    "vdp-pruning": pruning,
    "vdp-noise": noise,
    "vdp-explanations": explanations,
}


def main() -> None:
    for name, draw in FIGURES.items():
        figure = draw()
        if figure is not None:
            print(figures.save(figure, FOLDER / f"{name}.png").name)


if __name__ == "__main__":
    main()
