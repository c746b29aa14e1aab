"""Reader of numeric arrays in Matlab files (level 5), since a damaged file can crash scipy's reader."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

HEAD = 128
COMPRESSED, MATRIX = 15, 14
TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""Storage types of elements."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Value types of arrays by class."""
MOST_BYTES = 16 * 2**30


def matlab_arrays(data: bytes) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """Yield the names and arrays of a file; reject anything but numeric arrays."""
    if len(data) < HEAD or data[HEAD - 4 : HEAD] != b"\0\x01IM":
        raise ValueError("not a little-endian file of level 5")
    for kind, body in _elements(memoryview(data)[HEAD:]):
        if kind == COMPRESSED:
            engine = zlib.decompressobj()
            inside = memoryview(engine.decompress(body, MOST_BYTES))
            if not engine.eof:
                raise ValueError("a compressed array is truncated or too large")
            kind, body = next(_elements(inside), (0, inside))
        if kind != MATRIX:
            raise ValueError(f"an element of type {kind}")
        yield _array(body)


def _array(body: memoryview) -> tuple[str, npt.NDArray[np.generic]]:
    (_, flags), (_, sizes), (_, name), (kept, values) = (element for element, _ in zip(_elements(body), range(4)))
    if flags[0] not in CLASSES or flags[1] & 8 or kept not in TYPES:
        raise ValueError(f"an array of class {flags[0]}, kept as type {kept}")
    shape = np.frombuffer(sizes, dtype="<i4").tolist()
    numbers = np.frombuffer(values, dtype=TYPES[kept])
    if len(shape) > 8 or min(shape, default=-1) < 0 or math.prod(shape) != len(numbers):
        raise ValueError(f"{len(numbers)} numbers for an array of shape {shape}")
    return bytes(name).decode("ascii"), numbers.reshape(shape, order="F").astype(CLASSES[flags[0]])


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield type and contents of each element: a tag of 8 bytes, or one of 4 that contains up to 4 bytes."""
    place = 0
    while place < len(data):
        first = int.from_bytes(data[place : place + 4], "little")
        if first >> 16:
            kind, start, size, following = first & 0xFFFF, place + 4, first >> 16, place + 8
        else:
            kind, start, size = first, place + 8, int.from_bytes(data[place + 4 : place + 8], "little")
            following = start + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > len(data) or (first >> 16 and size > 4):
            raise ValueError("an element is truncated")
        yield kind, data[start : start + size]
        place = following
