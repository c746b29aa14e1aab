"""Validation of batches against the description of their data set, cheap enough for every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError, warn
from pocketbayes.data.dataset import Info
from pocketbayes.data.memory import Arrays
from pocketbayes.data.model_inputs import ModelInput, tensors_of

FEW = 20
"""The largest number of different values for which real-valued targets look like classes."""
SPARSE = 4
"""Ratio of the largest integer to the number of distinct ones above which targets look like a regression: class
numbers are dense, prices are not."""
MAX_MEAN_MAGNITUDE = 30.0
"""Largest mean magnitude of features before a warning; standardised features are far below."""


def validate_batch(x: ModelInput, y: Tensor, info: Info, rows: Sequence[int] | None = None) -> None:
    """Reject wrong shapes or types, NaN, infinity, and labels outside `0..classes-1` other than `ignore_index`.

    The message names the data set, the example and the value. A valid batch costs one pass over the data.

    Args:
        x: The inputs.
        y: The targets.
        info: Their description.
        rows: The examples' indices in the data set, if known.
    """
    _check_shapes(x, y, info)
    for values in tensors_of(x):
        _check_finite("x", values, info, rows)
    if info.task == "regression":
        _check_finite("y", y, info, rows)
        return
    assert info.classes is not None, "a classification without classes is a loader's mistake"
    wrong = (y < 0) | (y >= info.classes)
    if info.ignore_index is not None:
        wrong &= y != info.ignore_index
    if bool(wrong.any()):
        where = wrong.nonzero()[0].tolist()
        ignored = "" if info.ignore_index is None else f" (or {info.ignore_index}, which is ignored)"
        raise UserError(
            f"data set {info.name!r}: label {int(y[tuple(where)])} at {_place(where, rows)}, "
            f"but labels are 0 to {info.classes - 1}{ignored}"
        )


def look_continuous(different: int, rows: int, largest: int) -> bool:
    """Tell whether integers look like the targets of a regression: many, with gaps between them."""
    return different > max(FEW, rows / 5) and largest >= SPARSE * different


def check_tables(train: object, val: object, guessed: bool) -> None:
    """Reject training and validation tables with different numbers of features; warn of units that train badly.

    Args:
        train: Training data of any kind; only arrays are checked.
        val: Validation data, or None.
        guessed: Whether the task of the training data is guessed from the type of their targets.
    """
    shapes = [data.x.shape for data in (train, val) if isinstance(data, Arrays) and isinstance(data.x, Tensor)]
    if len(shapes) == 2 and len(shapes[0]) == len(shapes[1]) == 2 and shapes[0][1] != shapes[1][1]:
        raise UserError(f"the training data have {shapes[0][1]} features, but val= has {shapes[1][1]}")
    if not isinstance(train, Arrays):
        return
    if guessed:
        warn_of_odd_targets(train.y)
    features = train.x if isinstance(train.x, Tensor) and train.x.ndim == 2 else None
    for what, values in {"features": features, "targets": train.y}.items():
        if values is None or not values.is_floating_point():
            continue
        largest = float(values.abs().mean(0).max())
        if largest > MAX_MEAN_MAGNITUDE:
            warn(
                f"{what} as large as {largest:.3g} train badly: subtract their means and divide by their stds first, "
                "as data.standardise=true does for .npz files"
            )


def warn_of_odd_targets(y: Tensor) -> None:
    """Warn if floats look like classes, or integers like regression targets."""
    if y.ndim > 2 or y.flatten().shape != y.shape[:1] or not len(y):
        return
    different = len(y.unique())
    if y.is_floating_point():
        if 2 <= different <= FEW and len(y) >= 5 * different and bool((y == y.round()).all() and y.min() >= 0):
            warn(
                f"y holds {different} different whole numbers as floats and is treated as a regression: for classes "
                "give integers, y.long()"
            )
    elif look_continuous(different, len(y), int(y.max())):
        warn(
            f"y holds {different} different integers in {len(y)} rows and is treated as classes: for a regression give "
            "floats, y.float()"
        )
    elif int(y.min()) > 0 and different > 1:
        warn(f"labels start at {int(y.min())}, so lower classes never occur: number them from 0")


def _check_shapes(x: ModelInput, y: Tensor, info: Info) -> None:
    if not len(x):
        raise UserError(f"data set {info.name!r}: an empty batch")
    if tuple(x.shape[1:]) != info.input_shape:
        raise UserError(
            f"data set {info.name!r}: inputs of shape {tuple(x.shape[1:])} in a batch, expected {info.input_shape}"
        )
    expected = {"classification": 1, "segmentation": 3, "regression": 2}[info.task]
    if y.ndim != expected or len(y) != len(x) or (info.task == "segmentation" and y.shape[1:] != x.shape[2:]):
        raise UserError(
            f"data set {info.name!r}: targets of shape {tuple(y.shape)} do not match inputs of shape "
            f"{tuple(x.shape)} in {info.task}"
        )
    if y.is_floating_point() != (info.task == "regression"):
        raise UserError(f"data set {info.name!r}: targets of type {y.dtype} do not match {info.task}")


def _check_finite(what: str, values: Tensor, info: Info, rows: Sequence[int] | None) -> None:
    # A sum is finite only if every term is, and needs one pass and no memory; float32, since halves overflow early.
    if not values.is_floating_point() or bool(values.sum(dtype=torch.float32).isfinite()):
        return
    wrong = values.isfinite().logical_not_().nonzero()
    if len(wrong):
        where = wrong[0].tolist()
        raise UserError(f"data set {info.name!r}: {what} is {float(values[tuple(where)])} at {_place(where, rows)}")


def _place(index: list[int], rows: Sequence[int] | None) -> str:
    first, *rest = index
    example = f"position {first} of a batch" if rows is None else f"example {rows[first]}"
    return f"{example}, {tuple(rest)}" if rest else example
