"""Draw the figures of docs/methods/vdp.md from results/*.json; figures without data are skipped.

python benchmarks/propagation_figures.py
"""

from __future__ import annotations

from typing import Any

from measure import Rows, draw
from paper_figures import propagation

METHODS = ("map", "vdp, cross-entropy", "vdp, gaussian", "map + constant std")


def fidelity() -> Any:
    rows = Rows("propagation", key="fidelity")
    return propagation.fidelity_by_layer({name: row["layers"] for name, row in rows.items()}) if rows else None


def pass_worth() -> Any:
    rows = Rows("pass-worth", key="quality")
    return propagation.pass_worth(rows) if rows else None


def seeds(method: str) -> list[dict[str, Any]]:
    return [row for name, row in Rows("vdp-scratch").items() if name.startswith(f"{method}, seed")]


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


if __name__ == "__main__":
    draw(FIGURES)
