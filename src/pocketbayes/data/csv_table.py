"""Read a table from a CSV file: a row of headings, numeric features, and the target in the last column."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pocketbayes.base.errors import UserError, refusing
from pocketbayes.data.validate import look_continuous


def read_csv(path: Path, labelled: bool = True) -> dict[str, npt.NDArray[Any]]:
    """Return the features `x` and, from the last column, the targets `y`; without labels all columns are features.

    Raises:
        UserError: If a row has another number of columns than the headings, or a feature is not a number.
    """
    headings, rows = _cells(path)
    features = headings[:-1] if labelled else headings
    if not rows or not features:
        raise UserError(f"{path}: needs a row of headings, then rows with features and, in the last column, a target")
    table = np.empty((len(rows), len(features)), np.float64)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(headings):
            raise UserError(f"{path}, line {number}: {len(row)} columns, but there are {len(headings)} headings")
        for column, cell in enumerate(row[: len(features)]):
            table[number - 2, column] = _number(cell, path, number, features[column])
    return {"x": table, "y": _column([row[-1] for row in rows])} if labelled else {"x": table}


def read_rows(path: Path, features: int) -> npt.NDArray[np.float64]:
    """Return the rows (n, features) of a table to predict, which may have the target as a last column.

    Raises:
        UserError: If the table has another number of columns.
    """
    headings, _ = _cells(path)
    if len(headings) not in (features, features + 1):
        raise UserError(
            f"{path}: {len(headings)} columns, but the network takes {features} features, in the order of its training "
            "data; only the target may follow them"
        )
    return read_csv(path, labelled=len(headings) > features)["x"]


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows."""
    with refusing(path, "a readable CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        headings, *rows = list(csv.reader(file)) or [[]]
    while rows and not rows[-1]:
        rows.pop()  # empty lines at the end
    counted = [str(number) for number in range(len(headings))]  # as pandas names columns that have no name
    if headings != counted and _fits(np.array(headings), float):
        raise UserError(f"{path}: the first row holds numbers, not headings; put the columns' names above it")
    return headings, rows


def _number(cell: str, path: Path, line: int, heading: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{path}, line {line}: {heading} is {cell!r}, not a number; encode it as numbers") from None


def _column(cells: list[str]) -> npt.NDArray[Any]:
    """Return integers if all cells are labels, else floats if all are numbers, else text."""
    column = np.array(cells)
    if _fits(column, int):
        whole = column.astype(np.int64)
        is_label = whole.min() >= 0 and not look_continuous(len(np.unique(whole)), len(whole), int(whole.max()))
        return whole if is_label else whole.astype(np.float64)
    return column.astype(np.float64) if _fits(column, float) else column


def _fits(column: npt.NDArray[Any], kind: type[int] | type[float]) -> bool:
    try:
        column.astype(kind)
    except ValueError:
        return False
    return True
