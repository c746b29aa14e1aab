"""Readers and writers of bits and bytes for all coded parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pocketbayes.base.errors import UserError

Ints = npt.NDArray[np.signedinteger[Any]]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class CodecError(UserError):
    """Invalid bytes."""


class Reader:
    """A bounds-checked reader of bytes."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data, self.place = np.frombuffer(data, dtype=np.uint8), 0

    def array(self, size: int) -> Bytes:
        """Return the next `count` bytes."""
        if not 0 <= size <= len(self.data) - self.place:
            raise CodecError("damaged numbers: they end too early")
        part = self.data[self.place : self.place + size]
        self.place += size
        return part

    def varint(self) -> int:
        """Return the next integer."""
        value = 0
        for shift in range(0, 70, 7):
            byte = int(self.array(1)[0])
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise CodecError("damaged numbers: an integer does not end")

    def rest(self) -> Bytes:
        """Return the remaining bytes."""
        return self.array(len(self.data) - self.place)

    def finish(self) -> None:
        """Raise `CodecError` if bytes remain."""
        if self.place != len(self.data):
            raise CodecError("damaged numbers: bytes left over")


def varints(values: Sequence[int]) -> bytes:
    """Encode integers with seven bits per byte, lowest first; all bytes but the last have their highest bit set."""
    out = bytearray()
    for value in values:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def pack_bits(values: Ints, lengths: Ints) -> bytes:
    """Pack each value's low bits, lowest first, without gaps."""
    which, place = _bit_places(lengths)
    return np.packbits(((values[which] >> place) & 1).astype(np.uint8), bitorder="little").tobytes()


def unpack_bits(data: Bytes, lengths: Ints) -> Ints:
    """Invert `pack_bits`."""
    if len(data) != -(-int(lengths.sum()) // 8):
        raise CodecError("damaged numbers: wrong number of bits")
    which, place = _bit_places(lengths)
    bits = np.unpackbits(data, bitorder="little")[: len(which)].astype(np.int64)
    values = np.zeros(len(lengths), dtype=np.int64)
    np.add.at(values, which, bits << place)
    return values


def _bit_places(lengths: Ints) -> tuple[Ints, Ints]:
    which = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return which, place


def checked_lengths(count: int, segments: Sequence[int] | None) -> Sequence[int]:
    """Return the lengths of the segments, by default one; reject lengths that do not sum to the count."""
    lengths = [count] if segments is None else segments
    if sum(lengths) != count or min(lengths, default=0) < 0:
        raise CodecError(f"{count} numbers do not make segments of {sum(lengths)}")
    return lengths


def slices(lengths: Sequence[int]) -> Iterator[slice]:
    """Yield the slice of each segment."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length
