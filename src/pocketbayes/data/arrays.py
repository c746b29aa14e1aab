"""A user's arrays: npz files and CSV tables with headings, numeric features, and the target in the last column."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from pocketbayes.base.errors import UserError, refusing
from pocketbayes.data.dataset import Arrays, Dataset, Images, Info, Task
from pocketbayes.data.formats import read_npz
from pocketbayes.data.pixels import CropFlip, PadMode, StatsOption, normalisation
from pocketbayes.data.request import Request
from pocketbayes.data.validate import look_continuous, warn_of_odd_targets

Array = npt.NDArray[Any]


def read_csv(path: Path, labelled: bool = True) -> dict[str, npt.NDArray[Any]]:
    """Return the features `x` and, from the last column, the targets `y`; without labels all columns are features.

    Raises:
        UserError: If a row has another number of columns than the headings, or a feature is not a number.
    """
    headings, rows = _cells(path)
    features = headings[:-1] if labelled else headings
    if not rows or not features:
        raise UserError(f"{path}: needs a header row, then rows of features with the target in the last column")
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
        way_out = "encode text as numbers (docs/convert.md, regression)" if cell else "fill or remove missing values"
        raise UserError(f"{path}, line {line}: {heading} is {cell!r}, not a number; {way_out}") from None


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
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
            raise UserError(f"{file}: row {row} of {name} holds NaN or infinity")
    class_names = None
    if y.dtype.kind in "US":
        names, y = np.unique(y, return_inverse=True)
        class_names = tuple(str(name) for name in names)
    kind, y = _targets(y, file, task)
    if kind == "classification":
        classes = classes or int(y.max(initial=0)) + 1
    labels = torch.from_numpy(y)
    if labelled and task is None:
        warn_of_odd_targets(labels)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = _channels_first(x, file)
        normalise = normalisation("none", images.shape[1], mean, std)
        info = Info("npz", kind, classes, class_names, images.shape[1:], normalise.mean, normalise.std)
        augment = CropFlip(pad, pad_mode, flip) if request.augmented else None
        return request.carve(Images(torch.from_numpy(images), labels, info, normalise, augment), test_fraction)
    if x.dtype.kind not in "biuf":
        raise UserError(f"{file}: x contains {x.dtype}, but only numbers are supported")
    info = Info("npz", kind, classes, class_names, x.shape[1:])
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
        known = request.kept(len(table), test_fraction)
        if len(known):
            table = table.standardised(known)
        elif standardise:
            raise UserError(f"{file}: standardise= has no training rows, all are test rows: give mean= and std=")
    return request.carve(table, test_fraction)


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
