"""Table of speed.json, for tables.py."""

from __future__ import annotations

from typing import Any

from table_parts import Result, Table, Tables


def speed(result: Result) -> Table:
    """Return a row per cost: before, now, goal, best peer, and peak memory."""
    head = ["", "before", "now", "goal", "fastest peer", "peak memory, relative to the plain model"]
    return head, [cells(row) for row in result["rows"].values()]


def cells(row: dict[str, Any]) -> list[str]:
    unit = " s" if row["base"] == "a second" else ""
    peers = sorted(
        (value, name) for name, value in row["peers"].items() if name not in ("its own 30 samples", "deterministic")
    )
    return [
        row["what"] + ("" if unit or row["base"] == "deterministic" else f", over {row['base']}"),
        number(row.get("before"), unit),
        "not measured again" if row["ours"] == row.get("before") else number(row["ours"], unit),
        number(row["goal"], unit),
        f"{number(peers[0][0], unit)} ({peers[0][1]})" if peers else "",
        "" if unit else number(row.get("peak_over_plain"), ""),
    ]


def number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3g}{unit}"


TABLES: Tables = {"speed": ("speed", speed)}
