"""Read a table from a CSV file: a row of headings, numeric features, and the target in the last column."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pocketbayes.base.errors import UserError, refusing


def read_csv(path: Path, labelled: bool = True) -> dict[str, npt.NDArray[Any]]:
    """Return the features `x` and, from the last column, the targets `y`; without labels all columns are features.

    Raises:
        UserError: If a row has another number of columns than the headings, or a feature is not a number.
    """
    with refusing(path, "a readable CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        headings, *rows = list(csv.reader(file)) or [[]]
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


def _number(cell: str, path: Path, line: int, heading: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{path}, line {line}: {heading} is {cell!r}, not a number; code it as numbers first") from None


def _column(cells: list[str]) -> npt.NDArray[Any]:
    """Return integers where all cells are integers, else floats where all are numbers, else text."""
    column = np.array(cells)
    return (
        column.astype(np.int64) if _fits(column, int) else column.astype(np.float64) if _fits(column, float) else column
    )


def _fits(column: npt.NDArray[Any], kind: type[int] | type[float]) -> bool:
    try:
        column.astype(kind)
    except ValueError:
        return False
    return True
