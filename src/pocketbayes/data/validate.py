"""Validation of batches against the description of their data set, and warnings for data unlike the training data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError, warn
from pocketbayes.data.dataset import Arrays, Info
from pocketbayes.data.model_inputs import ModelInput, as_input, tensors_of

if TYPE_CHECKING:
    from PIL import Image

MAX_CLASS_VALUES = 20
"""The largest number of different values for which real-valued targets look like classes."""
MIN_GAP_FACTOR = 4
"""Ratio of the largest integer to the number of distinct ones above which targets look like a regression: class
numbers are dense, prices are not."""
MAX_MEAN_MAGNITUDE = 30.0
"""Largest mean magnitude of features before a warning; standardised features are far below."""
SMALL_SIDE = 64
"""Networks for smaller images are usually trained on icons, digits and thumbnails, not on reduced photographs."""
MAX_REDUCTION = 4
MAX_ENLARGEMENT = 2
MAX_COLOUR = 8.0
"""Mean difference between a pixel's channels, in bytes, above which a picture is coloured."""
MAX_STDS = 10.0
"""Distance in stds from its training mean that a feature rarely has in training."""
MAX_RANGE = 3.0
"""Distance from the training range, in widths of that range."""


def validate_batch(x: ModelInput, y: Tensor, info: Info, rows: Sequence[int] | None = None) -> None:
    """Reject wrong shapes or types, NaN, infinity, and labels outside `0..classes-1` other than `ignore_index`.

    The message names the data set, the example and the value. A valid batch costs one pass over the data.
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
            f"but labels are 0 to {max(info.classes - 1, 0)}{ignored}"
        )


def look_continuous(different: int, rows: int, largest: int) -> bool:
    """Return whether integers look like targets of a regression: many, with gaps between them."""
    return different > max(MAX_CLASS_VALUES, rows / 5) and largest >= MIN_GAP_FACTOR * different


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
        if (
            2 <= different <= MAX_CLASS_VALUES
            and len(y) >= 5 * different
            and bool((y == y.round()).all() and y.min() >= 0)
        ):
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


def warn_of_picture(image: Image.Image, path: Path, info: Info) -> None:
    """Warn of an image whose size or colour differs from the training images described by `info`."""
    channels, *size = info.input_shape
    shorter, wanted = min(image.size), min(size)
    changes = []
    if wanted < SMALL_SIDE and shorter > MAX_REDUCTION * wanted:
        changes.append(f"reduced from {image.width} x {image.height} to {size[1]} x {size[0]} pixels")
    elif wanted >= MAX_ENLARGEMENT * shorter:
        changes.append(f"enlarged from {image.width} x {image.height} to {size[1]} x {size[0]} pixels")
    if channels == 1 and _is_coloured(image):
        changes.append("converted to grey")
    if changes:
        warn(f"{path} is {' and '.join(changes)}, unlike the training images: do not rely on its prediction")


def checked_inputs(x: Any, info: Info | None = None) -> ModelInput:
    """Return inputs (n, ...) as dense tensors: one, or several by name; warn of values unlike the training data."""
    if isinstance(x, (str, Path)):
        raise UserError(f"x is the name {str(x)!r}, not inputs: read a file with pb.data.read_inputs(path, net.info)")
    inputs = as_input(x)
    if info is not None and tuple(inputs.shape) == tuple(info.input_shape):
        raise UserError(f"x is one input {tuple(inputs.shape)}, not a batch (n, ...): give x[None]")
    if not len(inputs):
        raise UserError("nothing to predict: x is empty")
    if info is not None and isinstance(inputs, Tensor):
        warn_of_values(inputs, info)
    return inputs


def warn_of_values(x: Tensor, info: Info) -> None:
    """Warn of values outside the training data: pixels that are not normalised, features far from their mean."""
    if not x.is_floating_point() or not x.numel() or tuple(x.shape[1:]) != tuple(info.input_shape):
        return
    if info.mean is None or info.std is None:
        _warn_of_range(x, info)
        return
    if len(info.input_shape) == 3:
        low = min(-mean / std for mean, std in zip(info.mean, info.std))
        high = max((1 - mean) / std for mean, std in zip(info.mean, info.std))
        least, most = (float(value) for value in x.aminmax())
        if most > high + (high - low) or least < low - (high - low):
            warn(
                f"x holds values from {least:.3g} to {most:.3g}, but pixels as in training lie between {low:.3g} and "
                f"{high:.3g}: normalise them, as pb.data.read_inputs does; otherwise predictions may be unreliable"
            )
    elif x.ndim == 2 and float(farthest := x.abs().max()) > MAX_STDS:
        row, feature = divmod(int(x.abs().argmax()), x.shape[1])
        name = feature if info.features is None else repr(info.features[feature])
        warn(
            f"feature {name} of x[{row}] lies {float(farthest):.3g} stds from its mean in training: the network was "
            "not trained on such values (were the features standardised as in training?)"
        )


def feature_range(x: Tensor) -> tuple[float, float] | None:
    """Return the smallest and largest number of a table's features; None for other inputs."""
    if not x.is_floating_point() or x.ndim != 2 or not x.numel() or not bool(x.isfinite().all()):
        return None
    least, most = x.aminmax()
    return float(f"{float(least):.7g}"), float(f"{float(most):.7g}")


def _warn_of_range(x: Tensor, info: Info) -> None:
    if info.range is None:
        return
    low, high = info.range
    slack = MAX_RANGE * max(high - low, torch.finfo(torch.float32).tiny)
    least, most = (float(value) for value in x.aminmax())
    if least < low - slack or most > high + slack:
        warn(
            f"x holds values from {least:.3g} to {most:.3g}, the training data from {low:.3g} to {high:.3g}: the "
            "network was not trained on such values"
        )


def _is_coloured(image: Image.Image) -> bool:
    small = image.convert("RGB")
    small.thumbnail((64, 64))
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).reshape(-1, 3).float()
    return float((pixels.amax(1) - pixels.amin(1)).mean()) > MAX_COLOUR
