"""Parts of the tables that `tables.py` writes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

Result = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
"""A heading and rows."""
Tables = Mapping[str, tuple[str, Callable[[Result], Table | str]]]
"""By name: the file in results/, and the function that makes a table or a line of Markdown from it; the files of a
pattern are passed together, by name."""
Group = list[dict[str, Any]]
"""Rows that differ only in their seed or split."""


def grouped(rows: Mapping[str, dict[str, Any]], last: str = ", seed") -> dict[str, Group]:
    """Group the rows of the same name over seeds or splits."""
    groups: dict[str, Group] = {}
    for name, row in rows.items():
        groups.setdefault(name.split(last)[0], []).append(row)
    return groups


def mean(group: Group, key: str) -> float:
    return statistics.fmean(row[key] for row in group)


def spread(values: list[float], digits: int, error: bool = False) -> str:
    """Return mean ± std over seeds, or ± standard error over splits."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    deviation = statistics.stdev(values) / (len(values) ** 0.5 if error else 1)
    return f"{statistics.fmean(values):.{digits}f} ± {deviation:.{digits}f}"
