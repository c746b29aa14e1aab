"""Network inputs from image and array files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.arrays import read_rows
from pocketbayes.data.dataset import Info
from pocketbayes.data.folders import SUFFIXES, centre_crop, read_image, require
from pocketbayes.data.formats import read_npy, read_npz
from pocketbayes.data.validate import warn_of_picture

Array = npt.NDArray[Any]


def read_inputs(path: str | Path, info: Info | None) -> Tensor:
    """Return the inputs (n, ...) in a file, ready for `predict`.

    Images are scaled and, if they were in training, cropped to the network's input size. Arrays (.npy, or x in an .npz)
    hold one input or many: bytes or numbers from 0 to 1 for images, original units for tables. Both are normalised as
    in training. A CSV table has headings, the features in any order if the network knows their names, and
    possibly the target.

    Args:
        path: The file.
        info: The description of the network's data, `net.info`; None leaves arrays unchanged.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder: name the files in it, such as {path}/*")
    if not path.is_file():
        raise UserError(f"no file {path}")
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return _normalised(_read_image(path, info)[None], path, info)
    if suffix == ".npy":
        return _inputs(read_npy(path), path, info)
    if suffix == ".npz":
        arrays = read_npz(path, ("x",))
        if "x" not in arrays:
            raise UserError(f"{path}: needs the array x")
        return _inputs(arrays["x"], path, info)
    if suffix == ".csv":
        if info is None or len(info.input_shape) != 1:
            raise UserError(f"{path}: the network is not known to take rows of a table; give it arrays (.npy or .npz)")
        return _inputs(read_rows(path, info), path, info)
    raise UserError(f"{path}: neither an image ({' '.join(SUFFIXES)}), an array (.npy .npz) nor a table (.csv)")


def scale_inputs(x: Tensor, info: Info) -> Tensor:
    """Normalise inputs (n, ...), pixels from 0 to 1 or features, as in the network's training."""
    if info.mean is None or info.std is None:
        return x
    extra = (1,) * (len(info.input_shape) - 1)
    mean, std = (torch.tensor(values, device=x.device).reshape(-1, *extra) for values in (info.mean, info.std))
    return (x - mean) / std


def _read_image(path: Path, info: Info | None) -> Array:
    if info is None or len(info.input_shape) != 3 or info.mean is None:
        raise UserError(
            f"{path}: the network has no description of its images: add one with pb.describe(net, transform=...), "
            "or give arrays (.npy or .npz)"
        )
    pillow = require("PIL.Image")
    channels, height, width = info.input_shape
    if channels not in (1, 3):
        raise UserError(f"{path}: the network takes images of {channels} channels; give it arrays (.npy or .npz)")
    picture = read_image(path, None)
    warn_of_picture(picture, path, info)
    image = picture.convert("L" if channels == 1 else "RGB")
    if info.crop_fraction is not None:
        cropped: Array = centre_crop((height, width), info.crop_fraction, info.interpolation)(image).numpy()
        return cropped
    pixels = image.resize((width, height), pillow.Resampling[info.interpolation.upper()])
    return np.asarray(pixels, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def _inputs(array: Array, path: Path, info: Info | None) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise UserError(f"{path}: contains {array.dtype}, but only numbers are supported")
    if not array.size:
        raise UserError(f"{path}: is empty")
    if info is None:
        return _finite(array, path)
    return _normalised(_arranged(array, path, info.input_shape), path, info)


def _arranged(array: Array, path: Path, shape: tuple[int, ...]) -> Array:
    """Return the array as (n, ...), from one input or many, with channels first, last or without an axis."""
    orders = [array]
    if len(shape) == 3:
        orders += [np.moveaxis(array, -1, -3)] if array.ndim >= 3 else []
        orders += [np.expand_dims(array, -3)] if array.ndim >= 2 else []
    for order in orders:
        if order.shape == shape:
            return order[None]
        if order.shape[1:] == shape:
            return order
    raise UserError(f"{path}: shape {array.shape} is neither one input {shape} of the network nor many (n, ...)")


def _normalised(array: Array, path: Path, info: Info | None) -> Tensor:
    x = _finite(np.ascontiguousarray(array), path)
    if info is None or info.mean is None or info.std is None:
        return x
    if len(info.input_shape) == 3:
        if array.dtype == np.uint8:
            x /= 255
        elif float(x.min()) < 0 or float(x.max()) > 1:
            raise UserError(f"{path}: pixels from {x.min():.3g} to {x.max():.3g}; give bytes, or numbers from 0 to 1")
    return scale_inputs(x, info)


def _finite(array: Array, path: Path) -> Tensor:
    with np.errstate(over="ignore"):  # what does not fit single precision becomes infinity
        x = torch.from_numpy(array.astype(np.float32))
    if not bool(x.isfinite().all()):
        where = tuple(x.isfinite().logical_not().nonzero()[0].tolist())
        raise UserError(f"{path}: {float(x[where])} at position {where}; correct or remove it")
    return x
