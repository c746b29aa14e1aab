"""Entropy coding of weights' codes by context: the magnitude of codes in the same row, column and tap.

Rows, input channels and kernel taps of a layer differ in scale. Each has a level on a logarithmic scale; the sum of a
weight's three levels gives its class, and every class has its own model. The levels are a few hundred bytes of side
information that is read before the first code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pocketbayes.files.codec.bits import CodecError, Ints, Reader, varints
from pocketbayes.files.codec.integers import pack_ints, unpack_ints

STEPS_PER_OCTAVE = 3
MAX_CLASSES = 24
SMALLEST_CLASS = 256
"""Smallest number of symbols for which a class gets a model."""
SMALLEST_MAGNITUDE = 2.0**-6

Shapes = Sequence[Sequence[int]]


def pack_codes(values: Ints, shapes: Shapes) -> bytes:
    """Pack the codes (n,) of weights whose layers have these shapes."""
    boxes = [_box(shape) for shape in shapes]
    origin = int(np.bincount(values - values.min()).argmax() + values.min()) if len(values) else 0
    axes: list[list[Ints]] = [[], [], []]
    start = 0
    for box in boxes:
        size = math.prod(box)
        magnitude = np.abs(values[start : start + size] - origin).astype(np.float64).reshape(box)
        start += size
        for axis, levels in enumerate(_levels(magnitude)):
            axes[axis].append(levels)
    sums = _sums(axes, boxes)
    edges = _edges(sums)
    classes = np.searchsorted(edges, sums, side="right")
    order = np.argsort(classes, kind="stable")
    counts = np.bincount(classes, minlength=len(edges) + 1)
    flat = [np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64) for parts in axes]
    side = pack_ints(np.concatenate(flat), [len(part) for part in flat])
    thresholds = pack_ints(edges)
    head = varints([len(edges), len(thresholds), len(side)]) + thresholds + side
    return head + pack_ints(values[order], counts.tolist())


def unpack_codes(data: bytes | memoryview, count: int, shapes: Shapes) -> Ints:
    """Return the codes that `pack_codes` packed.

    Raises:
        CodecError: If the bytes cannot be those of `count` codes of these shapes.
    """
    boxes = [_box(shape) for shape in shapes]
    if sum(map(math.prod, boxes)) != count:
        raise CodecError(f"{count} codes do not fill layers of {sum(map(math.prod, boxes))} weights")
    reader = Reader(data)
    number, thresholds, side = reader.varint(), reader.varint(), reader.varint()
    if number >= MAX_CLASSES:
        raise CodecError(f"damaged codes: {number} thresholds")
    edges = unpack_ints(reader.array(thresholds).data, number)
    if bool((np.diff(edges) <= 0).any()):
        raise CodecError("damaged codes: thresholds do not ascend")
    lengths = [sum(box[axis] for box in boxes) for axis in range(3)]
    levels = unpack_ints(reader.array(side).data, sum(lengths), lengths)
    axes = []
    for axis, part in enumerate(np.split(levels, np.cumsum(lengths)[:-1])):
        axes.append(np.split(part, np.cumsum([box[axis] for box in boxes])[:-1]))
    classes = np.searchsorted(edges, _sums(axes, boxes), side="right")
    order = np.argsort(classes, kind="stable")
    values = np.empty(count, dtype=np.int64)
    values[order] = unpack_ints(reader.rest().data, count, np.bincount(classes, minlength=number + 1).tolist())
    return values


def _box(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return rows, columns and taps of a weight tensor."""
    sizes = (1, *shape) if len(shape) < 2 else tuple(shape)
    return int(sizes[0]), int(sizes[1]), math.prod(sizes[2:])


def _levels(magnitude: np.ndarray) -> list[Ints]:
    """Return the level of each row, and those of columns and taps relative to the layer's mean."""
    if not magnitude.size:
        return [np.zeros(size, dtype=np.int64) for size in magnitude.shape]
    mean = max(float(magnitude.mean()), SMALLEST_MAGNITUDE)
    others = [(1, 2), (0, 2), (0, 1)]
    units = [1.0, mean, mean]
    return [
        np.round(STEPS_PER_OCTAVE * np.log2(np.maximum(magnitude.mean(axes) / unit, SMALLEST_MAGNITUDE))).astype(
            np.int64
        )
        for axes, unit in zip(others, units)
    ]


def _sums(axes: Sequence[Sequence[Ints]], boxes: Sequence[tuple[int, int, int]]) -> Ints:
    parts = [
        (rows[:, None, None] + columns[None, :, None] + taps[None, None, :]).reshape(-1)
        for rows, columns, taps, _ in zip(*axes, boxes)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _edges(sums: Ints) -> Ints:
    """Choose thresholds between classes of similar size, none too small to learn from."""
    found, counts = np.unique(sums, return_counts=True)
    enough = max(SMALLEST_CLASS, len(sums) / MAX_CLASSES)
    edges, held = [], 0
    for level, count in zip(found.tolist(), counts.tolist()):
        if held >= enough:
            edges.append(level)
            held = 0
        held += count
    return np.array(edges[: MAX_CLASSES - 1], dtype=np.int64)
