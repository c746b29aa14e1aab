"""What the tables are made of; `tables.py` writes them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

Result = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
"""A head and rows."""
Tables = Mapping[str, tuple[str, Callable[[Result], Table | str]]]
"""By name: the file in results/, and what makes a table of it, or a line of Markdown; a pattern's files go in together,
by their names."""
Group = list[dict[str, Any]]
"""Rows that differ in their seed or split alone."""


def grouped(rows: Mapping[str, dict[str, Any]], last: str = ", seed") -> dict[str, Group]:
    """The rows of one name over seeds or splits."""
    groups: dict[str, Group] = {}
    for name, row in rows.items():
        groups.setdefault(name.split(last)[0], []).append(row)
    return groups


def mean(group: Group, key: str) -> float:
    return statistics.fmean(row[key] for row in group)


def spread(values: list[float], digits: int, error: bool = False) -> str:
    """Mean ± std over seeds, or ± the standard error of the mean over splits."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    deviation = statistics.stdev(values) / (len(values) ** 0.5 if error else 1)
    return f"{statistics.fmean(values):.{digits}f} ± {deviation:.{digits}f}"
