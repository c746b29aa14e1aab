"""A user's arrays: npz files and CSV tables with headings, numeric features, and the target in the last column."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError, refusing, warn
from pocketbayes.data.dataset import Arrays, Dataset, Images, Info, Task
from pocketbayes.data.formats import read_npz
from pocketbayes.data.pixels import CropFlip, PadMode, StatsOption, normalisation
from pocketbayes.data.request import Request
from pocketbayes.data.validate import look_continuous, warn_of_odd_targets

Array = npt.NDArray[Any]
MAX_FLOAT = float(np.finfo(np.float32).max)


def read_csv(path: Path, labelled: bool = True) -> dict[str, npt.NDArray[Any]]:
    """Return the features `x` and, from the last column, the targets `y`; without labels all columns are features."""
    headings, rows = _cells(path)
    features = len(headings) - labelled
    if not rows or features < 1:
        raise UserError(f"{path}: needs a header row, then rows of features with the target in the last column")
    table = _numbers(path, headings, rows, range(features))
    if not labelled:
        return {"x": table}
    targets = [row[-1] for row in rows]
    _check_targets(path, headings[-1], targets)
    return {"x": table, "y": _column(targets)}


def feature_names(path: Path, labelled: bool = True) -> tuple[str, ...] | None:
    """Return the headings of a table's features; None if they are numbers or not unique."""
    headings, _ = _cells(path)
    names = tuple(headings[: len(headings) - labelled])
    return None if _are_counted(headings) or len(set(headings)) < len(headings) else names


def read_rows(path: Path, info: Info) -> npt.NDArray[np.float64]:
    """Return the rows (n, features) of a table to predict, which may also have the target.

    Columns are found by the features' names, in any order, if both the network and the table have names. Otherwise they
    must have the order of the training data, and only the target may follow them.
    """
    headings, rows = _cells(path)
    features = info.input_shape[0]
    if info.features is not None and not _are_counted(headings):
        columns = find_columns(headings, info.features, str(path))
    elif len(headings) in (features, features + 1):
        columns = list(range(features))
    else:
        raise UserError(
            f"{path}: {len(headings)} columns, but the network takes {features} features, in the order of its training "
            "data; only the target may follow them"
        )
    if not rows:
        raise UserError(f"{path}: has headings but no rows")
    return _numbers(path, headings, rows, columns)


def find_columns(headings: Sequence[str], features: Sequence[str], where: str) -> list[int]:
    """Return the positions of a network's features; warn if their order differs or columns are left out."""
    if missing := [name for name in features if name not in headings]:
        raise UserError(
            f"{where}: no column {_listed(missing)}, which the network was trained on; "
            f"the columns are {_listed(headings)}"
        )
    columns = [headings.index(name) for name in features]
    if columns != sorted(columns):
        warn(f"{where}: columns are in another order than in training; they are read by their names")
    others = [name for name in headings if name not in features]
    if len(others) > 1 or (others and others[0] != headings[-1]):  # the last column is the target
        warn(f"{where}: columns that the network was not trained on are ignored: {_listed(others)}")
    return columns


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def _numbers(path: Path, headings: list[str], rows: list[list[str]], columns: Sequence[int]) -> Array:
    """Return the numbers in these columns, (rows, columns)."""
    table = np.empty((len(rows), len(columns)), np.float64)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(headings):
            raise UserError(f"{path}, line {number}: {len(row)} columns, but there are {len(headings)} headings")
        table[number - 2] = [_number(row[column], path, number, headings[column]) for column in columns]
    return table


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows."""
    with refusing(path, "a readable CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        headings, *rows = list(csv.reader(file)) or [[]]
    while rows and not rows[-1]:
        rows.pop()  # empty lines at the end
    if len(headings) == 1 and (separator := next((mark for mark in ";\t|" if mark in headings[0]), None)):
        raise UserError(f"{path}: columns are separated by {separator!r}: save it with commas between them")
    if not _are_counted(headings) and _fits(np.array(headings), float):
        raise UserError(f"{path}: the first row holds numbers, not headings; put the columns' names above it")
    return [heading.strip() for heading in headings], rows


def _are_counted(headings: Sequence[str]) -> bool:
    """Tell whether headings are 0, 1, ..., as pandas names columns without a name."""
    return list(headings) == [str(number) for number in range(len(headings))]


def _number(cell: str, path: Path, line: int, heading: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        way_out = "fill or remove missing values" if not cell.strip() else "encode text as numbers (docs/convert.md)"
        raise UserError(f"{path}, line {line}: {heading} is {cell!r}, not a number; {way_out}") from None
    if not abs(value) <= MAX_FLOAT:
        raise UserError(f"{path}, line {line}: {heading} is {cell}, not a number in single precision; correct the row")
    return value


def _check_targets(path: Path, heading: str, cells: Sequence[str]) -> None:
    """Reject missing targets, and text among fractions, which are not names of classes."""
    has_fractions = any(_is_fraction(cell) for cell in cells)
    for line, cell in enumerate(cells, start=2):
        if has_fractions or not cell.strip():
            _number(cell, path, line, heading)


def _is_fraction(cell: str) -> bool:
    try:
        return not float(cell).is_integer()
    except ValueError:
        return False


def _column(cells: list[str]) -> npt.NDArray[Any]:
    """Return integers if all cells are labels, else floats if all are numbers, else text."""
    column = np.array(cells)
    if _fits(column, np.int64):
        whole = column.astype(np.int64)
        is_label = whole.min() >= 0 and not look_continuous(len(np.unique(whole)), len(whole), int(whole.max()))
        return whole if is_label else whole.astype(np.float64)
    return column.astype(np.float64) if _fits(column, float) else column


def _fits(column: npt.NDArray[Any], kind: type[np.int64] | type[float]) -> bool:
    try:
        column.astype(kind)
    except (ValueError, OverflowError):
        return False
    return True


def npz(
    request: Request,
    *,
    path: str | Path,
    test_fraction: float = 0.1,
    task: Literal["classification", "regression"] | None = None,
    classes: int | None = None,
    mean: StatsOption = None,
    std: StatsOption = None,
    standardise: bool | None = None,
    labelled: bool = True,
    pad: int = 0,
    pad_mode: PadMode = "zero",
    flip: bool = False,
) -> Dataset:
    """Load the arrays `x` and `y` of an npz file, or a CSV table with headings and the target in the last column.

    Integers or text in `y`, of shape (n,), mean classification, floating-point `y` regression; in a CSV table, negative
    integers and many integers with gaps, such as prices, also mean regression. Images are uint8 `x` of shape (n, H, W),
    (n, H, W, C) or (n, C, H, W) with one or three channels; other `x` are left unchanged or standardised.

    Args:
        request: The common settings.
        path: The file, inside the data folder or anywhere.
        test_fraction: The fraction of test rows, the same rows for every seed; 1 for a file of test data only.
        task: The task of numeric `y`; None infers it from their type.
        classes: The number of classes; by default one more than the largest label.
        mean: For images, a number per channel or the name of a known data set, such as "imagenet"; by default values
            lie in 0..1. For tables (n, features), a number per feature.
        std: Likewise.
        standardise: For tables, scale features and regression targets to mean 0 and std 1 over all but the test rows;
            None does so for CSV files, whose numbers have units.
        labelled: False reads only `x` and sets `y` to 0, for out-of-distribution data.
        pad: Padding of random crops in the augmentation of images.
        pad_mode: "zero" or "reflect".
        flip: Random flips in the augmentation of images.
    """
    file = next((place for place in (request.folder / path, Path(path).expanduser()) if place.is_file()), None)
    if file is None:
        raise UserError(
            f"data set 'npz': no file {path}, neither as given nor in {request.folder}; check --set data.path=..."
        )
    wanted = ("x", "y") if labelled else ("x",)
    is_csv = file.suffix.lower() == ".csv"
    arrays = read_csv(file, labelled) if is_csv else read_npz(file, wanted)
    if missing := [name for name in wanted if name not in arrays]:
        raise UserError(f"{file}: needs the arrays {' and '.join(wanted)}, but has no {' and no '.join(missing)}")
    x = arrays["x"]
    y = arrays["y"] if labelled else np.zeros(x.shape[:1], np.int64)
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise UserError(f"{file}: x of shape {x.shape} and y of shape {y.shape} do not have the same number of rows")
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not (fine := np.abs(values) <= MAX_FLOAT).all():
            row = int(np.flatnonzero(~fine.reshape(len(values), -1).all(axis=1))[0])
            raise UserError(f"{file}: row {row} of {name} holds NaN, infinity or a number beyond {MAX_FLOAT:.2g}")
    class_names = None
    if task is not None:
        check_choice("task", task, ("classification", "regression"))
    if y.dtype.kind in "US" and task != "regression":
        different, y = np.unique(y, return_inverse=True)
        class_names = tuple(str(name) for name in different)
    kind, y = _targets(y, file, task)
    if kind == "classification":
        found = int(y.max(initial=0)) + 1
        if classes is not None and not found <= classes:
            raise UserError(f"{file}: classes={classes}, but the largest label is {found - 1}")
        classes = found if classes is None else classes
    elif classes is not None:
        raise UserError(f"{file}: classes={classes}, but y means regression; add task='classification'")
    labels = torch.from_numpy(y)
    if labelled and task is None:
        warn_of_odd_targets(labels)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = _channels_first(x, file)
        normalise = normalisation("none", images.shape[1], mean, std)
        info = Info("npz", kind, classes, class_names, images.shape[1:], normalise.mean, normalise.std)
        augment = CropFlip(pad, pad_mode, flip) if request.augmented else None
        return request.carve(
            Images(torch.from_numpy(images), labels, info, normalise, augment), test_fraction, is_file=True
        )
    if x.dtype.kind not in "biuf":
        raise UserError(f"{file}: x contains {x.dtype}, but only numbers are supported")
    names = feature_names(file, labelled) if is_csv else None
    info = Info("npz", kind, classes, class_names, x.shape[1:], features=names)
    table = Arrays(torch.from_numpy(x.astype(np.float32)), labels, info)
    given = mean is not None or std is not None
    if (given or standardise) and x.ndim != 2:
        raise UserError(
            f"{file}: mean=, std= and standardise= need uint8 images or tables, but x is {x.dtype} of shape {x.shape}"
        )
    if given:
        scale = normalisation("none", x.shape[1], mean, std)
        table = table.scaled(scale.mean, scale.std)
    elif standardise or (standardise is None and is_csv):
        known = request.kept(len(table), test_fraction, is_file=True)
        if len(known):
            table = table.standardised(known)
        elif standardise:
            raise UserError(f"{file}: standardise= has no training rows, all are test rows: give mean= and std=")
    return request.carve(table, test_fraction, is_file=True)


def _targets(y: Array, file: Path, task: Task | None) -> tuple[Task, Array]:
    if task == "regression" and y.dtype.kind in "iu":
        y = y.astype(np.float32)
    elif task == "classification" and y.dtype.kind == "f" and (y == y.round()).all():
        y = y.astype(np.int64)
    if y.dtype.kind in "biu" and y.ndim == 1:
        if len(y) and y.min() < 0:
            raise UserError(
                f"{file}: label {y.min()} in row {y.argmin()} of y; labels start at 0; remove rows "
                "without a label, or add --set data.task=regression"
            )
        return "classification", y.astype(np.int64)
    if y.dtype.kind == "f" and y.ndim <= 2:
        return "regression", y.reshape(len(y), -1).astype(np.float32)
    raise UserError(f"{file}: y is {y.dtype} of shape {y.shape}; expected integers (n,) or floats (n,) or (n, k)")


def _channels_first(x: Array, file: Path) -> Array:
    if x.ndim == 3:
        return x[:, None]
    if x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.shape[1] in (1, 3):
        return x
    raise UserError(f"{file}: x of shape {x.shape} has no axis of one or three channels")
