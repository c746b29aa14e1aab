"""The tables of corruptions.json, for tables.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Result = dict[str, Any]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def by_severity(result: Result) -> str:
    means = result["shift"]["corruptions_mean"]
    named = {
        "clean": result["measures"],
        **{f"severity {row['severity']}": row for row in means["by severity"]},
        "mean of the 15": means["of 15"],
        "mean of all 19": means["of 19"],
    }
    rows = [
        [name, f"{100 * row['accuracy']:.1f}", *(f"{row[key]:.3f}" for key in ("nll", "ece", "brier", "entropy"))]
        for name, row in named.items()
    ]
    return markdown(["", "accuracy", "NLL", "ECE", "Brier", "entropy"], rows)


def each(result: Result) -> str:
    rows = [
        [name.replace("_", " "), *(f"{100 * row['accuracy']:.1f}" for row in found)]
        for name, found in result["shift"]["corruptions"].items()
    ]
    return markdown(["severity", "1", "2", "3", "4", "5"], rows)


TABLES: dict[str, tuple[str, Callable[[Result], str]]] = {
    "corruptions": ("corruptions", by_severity),
    "corruptions-each": ("corruptions", each),
}
