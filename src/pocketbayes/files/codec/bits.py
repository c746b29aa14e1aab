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
    """Bytes that no encoder wrote."""


class Reader:
    """Takes parts off the front of some bytes, and never more than there are."""

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
        """Return the next whole number."""
        value = 0
        for shift in range(0, 70, 7):
            byte = int(self.array(1)[0])
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise CodecError("damaged numbers: an integer does not end")

    def rest(self) -> Bytes:
        """Return all that is left."""
        return self.array(len(self.data) - self.place)

    def finish(self) -> None:
        """Raise `CodecError` if something is left."""
        if self.place != len(self.data):
            raise CodecError("damaged numbers: bytes left over")


def varints(values: Sequence[int]) -> bytes:
    """Seven bits a byte, the lowest first; all bytes but the last have their highest bit set."""
    out = bytearray()
    for value in values:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def pack_bits(values: Ints, lengths: Ints) -> bytes:
    """Return each value's low bits, the lowest first, without gaps."""
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
    """Return the lengths of the segments, one for all by default; an error if they do not make up the count."""
    lengths = [count] if segments is None else segments
    if sum(lengths) != count or min(lengths, default=0) < 0:
        raise CodecError(f"{count} numbers do not make segments of {sum(lengths)}")
    return lengths


def slices(lengths: Sequence[int]) -> Iterator[slice]:
    """Return where each segment lies."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length
