"""Operations on batches of images (n, h, w, c) used by the corruptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage

from pocketbayes.data.folders import require

Array = NDArray[np.float64]
Generators = Sequence[Generator]

_LUMA = np.array([0.299, 0.587, 0.114])


def draw(rngs: Generators, one: Callable[[Generator], Any]) -> Array:
    """Return one draw per image, stacked."""
    return np.stack([one(rng) for rng in rngs])


def luma(x: Array) -> Array:
    """Return the brightness (..., 1) of colours; gray is unchanged."""
    return x if x.shape[-1] == 1 else (x @ _LUMA)[..., None]


def tint(colour: Array, x: Array) -> Array:
    """Return the colour, or its luma for gray images."""
    return colour if x.shape[-1] == 3 else colour @ _LUMA


def smooth(x: Array, std: float) -> Array:
    """Convolve with a Gaussian, repeating the border outside."""
    return np.asarray(ndimage.gaussian_filter(x, std, mode="nearest", axes=(1, 2)))


def shifted_sum(x: Array, rows: Any, columns: Any, weights: Array, edge: Any) -> Array:
    """Compute `sum_i weights_i x[r + rows_i, c + columns_i] / sum_i weights_i`: a convolution with few taps."""
    reach = int(max(np.abs(rows).max(), np.abs(columns).max()))
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode=edge)
    total = np.zeros_like(x)
    for row, column, weight in zip(rows + reach, columns + reach, weights / weights.sum()):
        total += weight * padded[:, row : row + height, column : column + width]
    return total


def smear(x: Array, radius: float, std: float, angles: Iterable[float]) -> Array:
    """Blur each image along its own angle in degrees, one-sided, with 2 radius + 1 taps."""
    taps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(taps**2) / (2 * std**2))
    smeared = np.empty_like(x)
    for i, angle in enumerate(np.deg2rad(list(angles))):
        rows, columns = (np.ceil(taps * along - 0.5).astype(int) for along in (np.sin(angle), np.cos(angle)))
        smeared[i : i + 1] = shifted_sum(x[i : i + 1], rows, columns, weights, "edge")
    return smeared


@lru_cache(maxsize=256)
def _zoom_matrix(length: int, factor: float) -> Array:
    """Return the matrix (length, length) that stretches the central 1/factor of a line by linear interpolation."""
    crop = int(np.ceil(length / factor))
    stretched = round(crop * factor)
    wanted = np.arange(length) + (stretched - length) // 2
    position = wanted * (crop - 1) / max(stretched - 1, 1) + (length - crop) // 2
    return np.asarray(np.maximum(0, 1 - np.abs(position[:, None] - np.arange(length))))


def zoom(x: Array, factor: float) -> Array:
    """Return the central 1/factor of each image at the size of the whole."""
    rows, columns = (_zoom_matrix(length, factor) for length in x.shape[1:3])
    return (rows @ x.transpose(0, 3, 1, 2) @ columns.T).transpose(0, 2, 3, 1)


def plasma(noise: Array, decay: float) -> Array:
    """Compute diamond-square noise on a torus, scaled to [0, 1], from `noise` (n, m, m) in [-1, 1], m a power of two.

    Each midpoint is the mean of its four neighbours plus noise, whose amplitude falls by `decay`^2 from one step to the
    next (the published code multiplies by its amplitude twice).
    """
    field = np.zeros_like(noise)
    step, amplitude = noise.shape[1], 1.0
    while step >= 2:
        half = step // 2
        on, off = slice(0, None, step), slice(half, None, step)
        corners = field[:, on, on]
        corners = corners + np.roll(corners, -1, axis=1)
        corners = corners + np.roll(corners, -1, axis=2)
        field[:, off, off] = corners / 4 + amplitude * noise[:, off, off]
        corners, middles = field[:, on, on], field[:, off, off]
        for axis, place in ((1, (slice(None), on, off)), (2, (slice(None), off, on))):
            around = corners + np.roll(corners, -1, axis=3 - axis) + middles + np.roll(middles, 1, axis=axis)
            field[place] = around / 4 + amplitude * noise[place]
        step, amplitude = half, amplitude / decay**2
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field


def homogeneous(points: Array) -> Array:
    """Return (..., d + 1): a one appended to each point."""
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def sample(x: Array, rows: Array, columns: Array) -> Array:
    """Return values at fractional positions (n, h, w), linear between pixels, mirrored outside."""
    sampled = np.zeros_like(x)
    image = np.arange(len(x))[:, None, None]
    top, left = np.floor(rows), np.floor(columns)
    for down in (0, 1):
        for right in (0, 1):
            weight = np.abs(1 - down - (rows - top)) * np.abs(1 - right - (columns - left))
            source = image, _mirror(top + down, x.shape[1]), _mirror(left + right, x.shape[2])
            sampled += weight[..., None] * x[source]
    return sampled


def _mirror(index: Array, length: int) -> NDArray[np.int64]:
    """Mirror positions at the borders: `... 2 1 0 1 2 ... length-1 length-2 ...`."""
    period = max(2 * (length - 1), 1)
    folded = index.astype(np.int64) % period
    return np.minimum(folded, period - folded)


def glistening(liquid: Array) -> Array:
    """Return the light on drops (h, w): an emboss filter over the distance from the drops' outlines."""
    drops = liquid > 0
    outline = drops & ~ndimage.binary_erosion(drops, border_value=1)
    if not outline.any():
        return np.zeros_like(liquid)
    distance = np.minimum(ndimage.distance_transform_edt(~outline), 20)
    level = ndimage.uniform_filter(distance, 3, mode="mirror").astype(int)
    reached = np.bincount(level.ravel(), minlength=21).cumsum() / level.size
    first = reached[level.min()]
    relief = 255 * (reached[level] - first) / max(1 - first, 1e-9)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = np.clip(ndimage.correlate(relief, emboss, mode="mirror"), 0, 255)
    return np.asarray(liquid * ndimage.uniform_filter(relief, 3, mode="mirror"))


def by_pillow(x: Array, change: Callable[[Any], Any]) -> Array:
    """Apply a function of Pillow to each image as bytes."""
    pillow = require("PIL.Image")

    bytes_ = np.rint(255 * x).astype(np.uint8)
    images = [pillow.fromarray(image[..., 0] if x.shape[-1] == 1 else image) for image in bytes_]
    return np.stack([np.asarray(change(image)) for image in images]).reshape(x.shape) / 255
