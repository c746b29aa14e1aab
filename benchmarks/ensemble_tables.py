"""Tables of ensembles: independent members in full, and coded."""

from __future__ import annotations

from typing import Any

from table_parts import Result, Table, Tables

HEAD = ["accuracy", "NLL", "ECE", "calibrated NLL", "SVHN AUROC", "CIFAR-100 AUROC"]


def figures(row: dict[str, Any]) -> list[str]:
    return [
        f"{100 * row['accuracy']:.2f}",
        *(f"{row[name]:.3f}" for name in ("nll", "ece", "calibrated_nll", "svhn_auroc", "cifar100_auroc")),
    ]


def members(result: Result) -> Table:
    """The curve of independent members."""
    chosen = [(count, row) for count, row in result["rows"].items() if count in ("1", "2", "3", "5", "10")]
    return ["members", *HEAD], [[count, *figures(row)] for count, row in chosen]


def coded(result: Result) -> Table:
    """Coded members by the bytes of their file, with their worth in independent members."""
    rows = []
    for name, row in result["rows"].items():
        worth = "" if row["dee"] is None else f"{row['dee']:.1f}"
        rows.append([name.split(" of ")[0], f"{row['bytes']:,}", *figures(row), worth])
    return ["members", "bytes", *HEAD, "DEE"], rows


def adaptive(result: Result) -> str:
    """One line on adaptive passes."""
    row = result["rows"]["5 of 10 within 760000"]["adaptive"]
    return (
        f"Five coded members, {row['passes']:.2f} passes per image on average: NLL {row['nll']:.4f}, "
        f"{row['nll_with_all']:.4f} with all five ({100 * row['rise']:+.1f} %).\n"
    )


TABLES: Tables = {
    "members": ("members", members),
    "coded-members": ("coded-members", coded),
    "adaptive-passes": ("coded-members", adaptive),
}
