"""Tables of corruptions.json, for tables.py."""

from __future__ import annotations

from table_parts import Result, Table, Tables


def by_severity(result: Result) -> Table:
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
    return ["", "accuracy", "NLL", "ECE", "Brier", "entropy"], rows


def each(result: Result) -> Table:
    rows = [
        [name.replace("_", " "), *(f"{100 * row['accuracy']:.1f}" for row in found)]
        for name, found in result["shift"]["corruptions"].items()
    ]
    return ["severity", "1", "2", "3", "4", "5"], rows


TABLES: Tables = {
    "corruptions": ("corruptions", by_severity),
    "corruptions-each": ("corruptions", each),
}
