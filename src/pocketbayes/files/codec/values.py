"""Encoding of positions by gaps, of runs, and of floats by byte or in steps."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from pocketbayes.files.codec.bits import Bytes, CodecError, Floats, Ints, Reader, checked_lengths, slices, varints
from pocketbayes.files.codec.integers import pack_ints, unpack_ints


def pack_positions(positions: Ints, edges: Sequence[int]) -> bytes:
    """Encode ascending positions as the gaps between them, by segment.

    Args:
        positions: (s,) strictly ascending.
        edges: The starts of the segments and the end of the last one.
    """
    counts = np.diff(np.searchsorted(positions, edges))
    starts = np.repeat(np.asarray(edges[:-1], dtype=np.int64), counts)
    before = np.concatenate([[-1], positions[:-1]])[: len(positions)]
    head = pack_ints(counts.astype(np.int64))
    return varints([len(head)]) + head + pack_ints(positions - np.maximum(before + 1, starts), counts.tolist())


def unpack_positions(data: bytes | memoryview, count: int, edges: Sequence[int]) -> Ints:
    """Invert `pack_positions`."""
    reader = Reader(data)
    counts = unpack_ints(reader.array(reader.varint()).data, len(edges) - 1)
    sizes = np.diff(np.asarray(edges, dtype=np.int64))
    if int(counts.sum()) != count or bool((counts < 0).any()) or bool((counts > sizes).any()):
        raise CodecError("damaged positions: their numbers do not add up")
    gaps = unpack_ints(reader.rest().data, count, counts.tolist())
    if count and not (int(gaps.min()) >= 0 and int(gaps.max()) <= edges[-1]):
        raise CodecError("damaged positions: impossible gap")
    positions = np.empty(count, dtype=np.int64)
    for part, start, stop in zip(slices(counts.tolist()), edges, edges[1:]):
        positions[part] = start - 1 + np.cumsum(gaps[part] + 1)
        if part.stop > part.start and int(positions[part.stop - 1]) >= stop:
            raise CodecError("damaged positions: beyond the end")
    return positions


def fold(values: Ints, runs: Sequence[tuple[int, int]]) -> Ints | None:
    """Replace ranges of values that are used once each, in order, by one symbol per range.

    Args:
        values: (n,).
        runs: (first value, length) of each range. The ranges are consecutive and hold the largest values.

    Returns:
        The values with the symbol `first value of the first run` + r for run r; None if that loses information.
    """
    if not runs or not len(values):
        return None
    folded = values.copy()
    for number, (first, count) in enumerate(runs):
        inside = (values >= first) & (values < first + count)
        if not np.array_equal(values[inside], np.arange(first, first + count)):
            return None
        folded[inside] = runs[0][0] + number
    return folded if int(values.max()) < sum(runs[-1]) else None


def unfold(values: Ints, runs: Sequence[tuple[int, int]]) -> Ints:
    """Invert `fold`, in place if the type allows."""
    if sum(runs[-1]) > np.iinfo(values.dtype).max:
        values = values.astype(np.int64)
    places = [np.flatnonzero(values == runs[0][0] + number) for number in range(len(runs))]
    for place, (first, count) in zip(places, runs):
        if len(place) != count:
            raise CodecError("damaged numbers: a range is not used once each")
        values[place] = np.arange(first, first + count)
    return values


def pack_exactly(rows: Bytes, segments: Sequence[int] | None = None, *, deflate: bool = False) -> bytes:
    """Encode any numbers bit for bit.

    Bytes that vary little, such as sign and exponent of floats, are entropy-coded.

    Args:
        rows: (n, bytes per number), lowest byte first.
        segments: As in `pack_ints`.
        deflate: Code by deflate, which reads ten times as fast and takes half a percent more.
    """
    lengths = checked_lengths(len(rows), segments)
    out = []
    for number in range(rows.shape[1])[::-1]:
        plane = np.ascontiguousarray(rows[:, number])
        coded = b""
        if _worth_coding(plane):
            coded = _deflate(plane) if deflate else pack_ints(plane.astype(np.int64), lengths)
        raw = not coded or len(coded) >= len(plane)
        out.append(varints([0 if raw else len(coded)]) + (plane.tobytes() if raw else coded))
    return b"".join(out)


def unpack_exactly(
    data: bytes | memoryview, count: int, width: int, segments: Sequence[int] | None = None, *, deflate: bool = False
) -> Bytes:
    """Invert `pack_exactly`."""
    lengths = checked_lengths(count, segments)
    reader = Reader(data)
    rows = np.empty((count, width), dtype=np.uint8)
    for number in range(width)[::-1]:
        coded = reader.varint()
        if not coded:
            plane = reader.array(count)
        elif deflate:
            plane = _inflate(reader.array(coded), count)
        else:
            plane = _bytes(unpack_ints(reader.array(coded).data, count, lengths, dtype=np.uint8))
        rows[:, number] = plane
    reader.finish()
    return rows


def _bytes(values: Ints) -> Bytes:
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < 256):
        raise CodecError("damaged numbers: a byte beyond 255")
    return values.astype(np.uint8, copy=False)


def _deflate(plane: Bytes) -> bytes:
    """Return the shorter of two ways: by how often each byte occurs, or by runs of equal ones as well."""
    coded = []
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE):
        engine = zlib.compressobj(wbits=-zlib.MAX_WBITS, memLevel=zlib.DEF_MEM_LEVEL, strategy=strategy)
        coded.append(engine.compress(plane.data) + engine.flush())
    return min(coded, key=len)


def _inflate(data: Bytes, count: int) -> Bytes:
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plane = np.frombuffer(engine.decompress(data.data, count + 1), dtype=np.uint8)
    except zlib.error as error:
        raise CodecError(f"damaged numbers: {error}") from error
    if len(plane) != count or not engine.eof or engine.unused_data:
        raise CodecError("damaged numbers: a deflated part of the wrong length")
    return plane


def pack_in_steps(values: Floats, bits: int, segments: Sequence[int] | None = None) -> bytes:
    """Encode `value = low + step q` with `q = 0 .. 2^bits - 1` entropy-coded, and low and step per segment.

    The error is at most half a step, `(max - min) / (2^bits - 1) / 2` of the segment.
    """
    lengths = checked_lengths(len(values), segments)
    if not np.isfinite(values).all():
        raise ValueError("only finite numbers have steps")
    levels, scales = np.zeros(len(values), dtype=np.int64), np.zeros((len(lengths), 2), dtype="<f4")
    for number, part in enumerate(slices(lengths)):
        if part.stop > part.start:
            own = values[part].astype(np.float64)
            low = np.float32(own.min())
            step = np.float32((own.max() - float(low)) / (2**bits - 1))
            scales[number] = low, step
            if step > 0:
                levels[part] = np.clip(np.round((own - float(low)) / float(step)), 0, 2**bits - 1).astype(np.int64)
    return scales.tobytes() + pack_ints(levels, lengths)


def unpack_in_steps(data: bytes | memoryview, count: int, segments: Sequence[int] | None = None) -> Floats:
    """Decode the values that `pack_in_steps` rounded."""
    lengths = checked_lengths(count, segments)
    reader = Reader(data)
    scales = reader.array(8 * len(lengths)).view("<f4").astype(np.float32).reshape(-1, 2)
    levels = unpack_ints(reader.rest().data, count, lengths).astype(np.float32)
    if not np.isfinite(scales).all() or (count and not (float(levels.min()) >= 0 and float(levels.max()) < 256)):
        raise CodecError("damaged numbers: impossible steps")
    values = np.empty(count, dtype=np.float32)
    for (low, step), part in zip(scales, slices(lengths)):
        values[part] = levels[part] * step + low
    return values


def _worth_coding(plane: Bytes) -> bool:
    """Return whether a plane's bytes are far from uniform, so that coding saves space."""
    if not len(plane):
        return False
    counts = np.bincount(plane, minlength=256)
    share = counts[counts > 0] / len(plane)
    return bool(-(share * np.log2(share)).sum() < 7.6)
