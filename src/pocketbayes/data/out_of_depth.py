"""Warnings for inputs that are unlike the training data in size, colour or range."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pocketbayes.base.errors import warn
from pocketbayes.data.dataset import Info

if TYPE_CHECKING:
    from PIL import Image

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
        warn(
            f"feature {feature} of x[{row}] lies {float(farthest):.3g} stds from its mean in training: the network was "
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
