"""Numbers to few bytes and back, exactly: integers by entropy coding, floats by byte or in steps. docs/format.md.

A sequence comes in segments (a network's layers), each with statistics of its own. Everything that the decoder
recomputes is integer arithmetic, so that files mean the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pocketbayes.errors import UserError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

PRECISION_BITS = 24
TOTAL = 1 << PRECISION_BITS
MOST_TOKENS = 1 << 16
LARGEST = 1 << 62
DIRECT = 64
"""Where values are too many to be tokens each: those below are, a token of the others gives their leading bits."""
ENOUGH = 64
"""Symbols for each possible value: with so many, each may as well be a token."""
FIRST_BLOCK = 32
"""Symbols that an adaptive model codes before it learns; then it learns each time a quarter more have passed."""
UNIT = 32
"""A symbol counts so much in an adaptive model: its prior counts in fractions of a symbol."""
NEGLIGIBLE = 1e-3
"""Where a table is a smaller share of a segment's bits, learning without one is not even tried: it takes time."""
MOST_LEARNING = 1 << 27
"""Tokens times blocks: what adaptive models may cost a decoder, a second at most."""
EIGHTH_POWERS = tuple(round(2**15 * 2 ** (i / 8)) for i in range(8))


class CodecError(UserError):
    """Bytes that no encoder wrote."""


# -- integers ---------------------------------------------------------------------------------------------------------


def pack_ints(values: Ints, segments: Sequence[int] | None = None) -> bytes:
    """Integers of either sign, |v| < 2^62, by asymmetric numeral systems.

    Args:
        values: (n,).
        segments: Lengths that sum up to n; one segment if left out.
    """
    lengths = _checked_lengths(len(values), segments)
    if not len(values):
        return b""
    low, high = int(values.min()), int(values.max())
    if max(abs(low), abs(high)) >= LARGEST:
        raise ValueError("integers must be below 2^62 in size")
    shifted = values - low if low else values
    spread = high - low
    plans = []
    if spread < MOST_TOKENS:
        plans.append(_plan(shifted, spread + 1, lengths))
    if spread >= max(DIRECT, len(values) // ENOUGH) or not plans:
        plans.append(_plan(shifted, DIRECT, lengths))
    best = min(plans, key=lambda plan: plan.bits)
    return _varints([low * 2 if low >= 0 else -low * 2 - 1, best.direct]) + best.write()


def unpack_ints(data: bytes | memoryview, count: int, segments: Sequence[int] | None = None) -> Ints:
    """The inverse of `pack_ints`.

    Raises:
        CodecError: If the bytes cannot be those of `count` integers.
    """
    lengths = _checked_lengths(count, segments)
    reader = _Reader(data)
    if not count:
        reader.finish()
        return np.zeros(0, dtype=np.int64)
    sign, direct = reader.varint(), reader.varint()
    low = sign // 2 if sign % 2 == 0 else -(sign + 1) // 2
    if not 1 <= direct <= MOST_TOKENS or abs(low) >= LARGEST:
        raise CodecError("damaged numbers: impossible range")
    tokens = _read_tokens(reader, lengths)
    values = _from_tokens(tokens, direct, reader.rest())
    values += low
    return values


@dataclass(frozen=True)
class _Plan:
    """How a sequence would be written, and the bits that this takes."""

    direct: int
    tokens: Ints
    extra: Ints
    extra_bits: Ints
    lengths: Sequence[int]
    alphabet: int
    static: list[bool]
    bits: float

    def write(self) -> bytes:
        from constriction import stream

        head = _varints([self.alphabet])
        if self.alphabet == 1:
            return head + _pack_bits(self.extra, self.extra_bits)
        parts: list[tuple[slice, Ints]] = []
        tables = []
        tokens = self.tokens.astype(np.int32)
        models = _Models(self.alphabet)
        for part, static in zip(_slices(self.lengths), self.static):
            counts = None
            if static:
                tables.append(_table(np.bincount(self.tokens[part], minlength=self.alphabet)))
                counts = _table_counts(tables[-1])
            for block in models.blocks(part, counts):
                parts.append((block, models.frequencies()))
                models.see_counts(np.bincount(tokens[block], minlength=self.alphabet))
        coder = stream.stack.AnsCoder()
        for block, frequencies in reversed(parts):
            coder.encode_reverse(tokens[block], _model(stream, frequencies))
        words = np.asarray(coder.get_compressed(), dtype="<u4")
        modes = np.packbits(np.array(self.static, dtype=np.uint8), bitorder="little").tobytes()
        body = b"".join(table.tobytes() for table in tables)
        return head + modes + body + _varints([len(words)]) + words.tobytes() + _pack_bits(self.extra, self.extra_bits)


def _plan(values: Ints, direct: int, lengths: Sequence[int]) -> _Plan:
    tokens, extra, extra_bits = _to_tokens(values, direct)
    alphabet = int(tokens.max()) + 1
    raw = float(extra_bits.sum())
    if alphabet == 1:
        return _Plan(direct, tokens, extra, extra_bits, lengths, 1, [], raw)
    models = _Models(alphabet)
    learning = alphabet * sum(map(_blocks, lengths))
    static, total = [], raw
    for part in _slices(lengths):
        counts = np.bincount(tokens[part], minlength=alphabet)
        fixed = 8 * alphabet + _bits(counts, _frequencies(_table_counts(_table(counts))))
        if 8 * alphabet < NEGLIGIBLE * fixed or learning > MOST_LEARNING:
            adaptive = float("inf")
            models.see_counts(counts)
        else:
            adaptive = 0.0
            for block in models.blocks(part, None):
                seen = np.bincount(tokens[block], minlength=alphabet)
                adaptive += _bits(seen, models.frequencies())
                models.see_counts(seen)
        static.append(fixed < adaptive)
        total += min(fixed, adaptive)
    return _Plan(direct, tokens, extra, extra_bits, lengths, alphabet, static, total)


def _read_tokens(reader: _Reader, lengths: Sequence[int]) -> Ints:
    from constriction import stream

    alphabet, count = reader.varint(), sum(lengths)
    if not 1 <= alphabet <= MOST_TOKENS + 8 * 64:
        raise CodecError("damaged numbers: impossible alphabet")
    tokens = np.zeros(count, dtype=np.int64)
    if alphabet == 1:
        return tokens
    modes = np.unpackbits(reader.array(-(-len(lengths) // 8)), bitorder="little")[: len(lengths)]
    if alphabet * sum(_blocks(length) for length, static in zip(lengths, modes) if not static) > MOST_LEARNING:
        raise CodecError("damaged numbers: too much to learn")
    tables = reader.array(int(modes.sum()) * alphabet).reshape(-1, alphabet)
    words = reader.array(4 * reader.varint()).view("<u4").astype(np.uint32)
    if len(words) and words[-1] == 0:
        raise CodecError("damaged numbers: impossible end of a stream")
    coder = stream.stack.AnsCoder(words)
    models, table = _Models(alphabet), iter(tables)
    for part, static in zip(_slices(lengths), modes):
        for block in models.blocks(part, _table_counts(next(table)) if static else None):
            tokens[block] = decoded = coder.decode(_model(stream, models.frequencies()), block.stop - block.start)
            models.see_counts(np.bincount(decoded, minlength=alphabet))
    if not coder.is_empty():
        raise CodecError("damaged numbers: a stream with something left over")
    return tokens


class _Models:
    """The model of each block, from what encoder and decoder have both seen."""

    def __init__(self, alphabet: int) -> None:
        self.alphabet = alphabet
        self.past = np.zeros(alphabet, dtype=np.int64)
        self.weights = self.past

    def blocks(self, part: slice, counts: Ints | None) -> Iterator[slice]:
        """The blocks of a segment: all of it under given counts, else pieces, learning after each."""
        if counts is not None:
            self.weights = counts
            if part.stop > part.start:
                yield part
            return
        # What came before is worth as many symbols as there are tokens, and half a symbol is added to each.
        total = int(self.past.sum())
        scaled = UNIT * self.alphabet * self.past // total if total else self.past
        prior, begun = scaled + UNIT // 2, self.past.copy()
        start = part.start
        while start < part.stop:
            self.weights = prior + UNIT * (self.past - begun)
            stop = min(start + max(FIRST_BLOCK, (start - part.start) // 4), part.stop)
            yield slice(start, stop)
            start = stop

    def frequencies(self) -> Ints:
        """Of the block that was given out last."""
        return _frequencies(self.weights)

    def see_counts(self, counts: Ints) -> None:
        """Takes a block's symbols into account."""
        self.past = self.past + counts


def _blocks(length: int) -> int:
    """The most blocks that an adaptive model takes for so many symbols."""
    return 0 if not length else 5 if length <= 5 * FIRST_BLOCK else 5 + 4 * (length // FIRST_BLOCK).bit_length()


def _frequencies(weights: Ints) -> Ints:
    """Whole frequencies, each at least 1, that sum up to 2^24 and are nearly proportional to the weights."""
    frequencies = 1 + weights * (TOTAL - len(weights)) // int(weights.sum())
    frequencies[weights.argmax()] += TOTAL - int(frequencies.sum())
    return frequencies


def _model(stream: Any, frequencies: Ints) -> Any:
    """The coder's model: it adds 1 to each of these by itself, and needs no scaling to reach 2^24."""
    return stream.model.Categorical((frequencies - 1).astype(np.float64), perfect=False)


def _bits(counts: Ints, frequencies: Ints) -> float:
    return float(counts @ (PRECISION_BITS - np.log2(frequencies)))


def _table(counts: Ints) -> Bytes:
    """A byte per count: 0, or one more than eight times its logarithm, rounded."""
    logarithms = np.where(counts > 0, 1 + np.round(8 * np.log2(np.maximum(counts, 1))), 0)
    return logarithms.astype(np.uint8)


def _table_counts(table: Bytes) -> Ints:
    """The counts that a table stands for, scaled by 2^15; 1 in place of 0."""
    eighths = np.maximum(table.astype(np.int64) - 1, 0)
    whole = eighths // 8
    excess = max(0, int(whole.max()) - 22)  # frequencies are computed in 64 bits
    powers = np.array(EIGHTH_POWERS, dtype=np.int64)[eighths % 8] << whole >> excess
    return np.where(table > 0, np.maximum(powers, 1), 1)


def _to_tokens(values: Ints, direct: int) -> tuple[Ints, Ints, Ints]:
    """Values from 0 as tokens, and the low bits of those at or above `direct`, with their number."""
    if int(values.max()) < direct:
        return values, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    large = values >= direct
    big = values[large]
    length = np.frexp(big.astype(np.float64))[1].astype(np.int64)
    length -= big < (1 << (length - 1))  # a number just below a power of two may have been rounded up
    low = length - 4
    tokens = values.copy()
    tokens[large] = direct + 8 * (length - DIRECT.bit_length()) + ((big >> low) & 7)
    return tokens, big & ((1 << low) - 1), low


def _from_tokens(tokens: Ints, direct: int, data: Bytes) -> Ints:
    if not len(tokens) or int(tokens.max()) < direct:
        if len(data):
            raise CodecError("damaged numbers: bytes left over")
        return tokens
    large = tokens >= direct
    code = tokens[large] - direct
    low = code // 8 + DIRECT.bit_length() - 4
    if direct != DIRECT or int(low.max()) > 63 - 4:
        raise CodecError("damaged numbers: too large")
    values = tokens.copy()
    values[large] = ((8 + code % 8) << low) + _unpack_bits(data, low)
    return values


# -- indices ----------------------------------------------------------------------------------------------------------


def pack_positions(positions: Ints, edges: Sequence[int]) -> bytes:
    """Ascending positions as the gaps between them, by segment.

    Args:
        positions: (s,) strictly ascending.
        edges: Where the segments begin, and where the last one ends.
    """
    counts = np.diff(np.searchsorted(positions, edges))
    starts = np.repeat(np.asarray(edges[:-1], dtype=np.int64), counts)
    before = np.concatenate([[-1], positions[:-1]])[: len(positions)]
    head = pack_ints(counts.astype(np.int64))
    return _varints([len(head)]) + head + pack_ints(positions - np.maximum(before + 1, starts), counts.tolist())


def unpack_positions(data: bytes | memoryview, count: int, edges: Sequence[int]) -> Ints:
    """The inverse of `pack_positions`."""
    reader = _Reader(data)
    counts = unpack_ints(reader.array(reader.varint()).data, len(edges) - 1)
    sizes = np.diff(np.asarray(edges, dtype=np.int64))
    if int(counts.sum()) != count or bool((counts < 0).any()) or bool((counts > sizes).any()):
        raise CodecError("damaged positions: their numbers do not add up")
    gaps = unpack_ints(reader.rest().data, count, counts.tolist())
    if count and not (int(gaps.min()) >= 0 and int(gaps.max()) <= edges[-1]):
        raise CodecError("damaged positions: impossible gap")
    positions = np.empty(count, dtype=np.int64)
    for part, start, stop in zip(_slices(counts.tolist()), edges, edges[1:]):
        positions[part] = start - 1 + np.cumsum(gaps[part] + 1)
        if part.stop > part.start and int(positions[part.stop - 1]) >= stop:
            raise CodecError("damaged positions: beyond the end")
    return positions


def fold(values: Ints, runs: Sequence[tuple[int, int]]) -> Ints | None:
    """Values of which some are used once each and in order, with one symbol for all of these.

    Args:
        values: (n,).
        runs: (first value, number) of each such range. The ranges follow one another and hold the largest values.

    Returns:
        The values with symbol `first value of the first run` + r for all of run r; None if that would lose something.
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
    """The inverse of `fold`."""
    unfolded = values.copy()
    for number, (first, count) in enumerate(runs):
        inside = values == runs[0][0] + number
        if int(inside.sum()) != count:
            raise CodecError("damaged numbers: a range is not used once each")
        unfolded[inside] = np.arange(first, first + count)
    return unfolded


# -- floats -----------------------------------------------------------------------------------------------------------


def pack_exactly(rows: Bytes, segments: Sequence[int] | None = None) -> bytes:
    """Any numbers, bit for bit: bytes that differ little, such as sign and exponent of floats, are entropy-coded.

    Args:
        rows: (n, bytes a number), the lowest byte first.
        segments: As in `pack_ints`.
    """
    lengths = _checked_lengths(len(rows), segments)
    out = []
    for number in range(rows.shape[1])[::-1]:
        plane = np.ascontiguousarray(rows[:, number])
        coded = pack_ints(plane.astype(np.int64), lengths) if _worth_coding(plane) else b""
        raw = not coded or len(coded) >= len(plane)
        out.append(_varints([0 if raw else len(coded)]) + (plane.tobytes() if raw else coded))
    return b"".join(out)


def unpack_exactly(data: bytes | memoryview, count: int, width: int, segments: Sequence[int] | None = None) -> Bytes:
    """The inverse of `pack_exactly`."""
    lengths = _checked_lengths(count, segments)
    reader = _Reader(data)
    rows = np.empty((count, width), dtype=np.uint8)
    for number in range(width)[::-1]:
        coded = reader.varint()
        if coded:
            values = unpack_ints(reader.array(coded).data, count, lengths)
            if count and not (int(values.min()) >= 0 and int(values.max()) < 256):
                raise CodecError("damaged numbers: a byte beyond 255")
            rows[:, number] = values
        else:
            rows[:, number] = reader.array(count)
    reader.finish()
    return rows


def pack_in_steps(values: Floats, bits: int, segments: Sequence[int] | None = None) -> bytes:
    """value = low + step q, q = 0 .. 2^bits - 1, low and step of each segment its own; the q entropy-coded.

    The error is at most half a step, (max - min) / (2^bits - 1) / 2 of the segment.
    """
    lengths = _checked_lengths(len(values), segments)
    if not np.isfinite(values).all():
        raise ValueError("only finite numbers have steps")
    levels, scales = np.zeros(len(values), dtype=np.int64), np.zeros((len(lengths), 2), dtype="<f4")
    for number, part in enumerate(_slices(lengths)):
        if part.stop > part.start:
            own = values[part].astype(np.float64)
            low = np.float32(own.min())
            step = np.float32((own.max() - float(low)) / (2**bits - 1))
            scales[number] = low, step
            if step > 0:
                levels[part] = np.clip(np.round((own - float(low)) / float(step)), 0, 2**bits - 1).astype(np.int64)
    return scales.tobytes() + pack_ints(levels, lengths)


def unpack_in_steps(data: bytes | memoryview, count: int, segments: Sequence[int] | None = None) -> Floats:
    """What is left of the values that `pack_in_steps` took."""
    lengths = _checked_lengths(count, segments)
    reader = _Reader(data)
    scales = reader.array(8 * len(lengths)).view("<f4").astype(np.float32).reshape(-1, 2)
    levels = unpack_ints(reader.rest().data, count, lengths).astype(np.float32)
    if not np.isfinite(scales).all() or (count and not (float(levels.min()) >= 0 and float(levels.max()) < 256)):
        raise CodecError("damaged numbers: impossible steps")
    values = np.empty(count, dtype=np.float32)
    for (low, step), part in zip(scales, _slices(lengths)):
        values[part] = levels[part] * step + low
    return values


def _worth_coding(plane: Bytes) -> bool:
    """Whether a plane's bytes are far from uniform: coding noise would cost time and save nothing."""
    if not len(plane):
        return False
    counts = np.bincount(plane, minlength=256)
    share = counts[counts > 0] / len(plane)
    return bool(-(share * np.log2(share)).sum() < 7.6)


# -- bits and bytes ---------------------------------------------------------------------------------------------------


class _Reader:
    """Takes parts off the front of some bytes, and never more than there are."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data, self.place = np.frombuffer(data, dtype=np.uint8), 0

    def array(self, size: int) -> Bytes:
        if not 0 <= size <= len(self.data) - self.place:
            raise CodecError("damaged numbers: they end too early")
        part = self.data[self.place : self.place + size]
        self.place += size
        return part

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = int(self.array(1)[0])
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise CodecError("damaged numbers: an integer without end")

    def rest(self) -> Bytes:
        return self.array(len(self.data) - self.place)

    def finish(self) -> None:
        if self.place != len(self.data):
            raise CodecError("damaged numbers: bytes left over")


def _varints(values: Sequence[int]) -> bytes:
    """Seven bits a byte, the lowest first; all bytes but the last have their highest bit set."""
    out = bytearray()
    for value in values:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def _pack_bits(values: Ints, lengths: Ints) -> bytes:
    """Each value's low bits, the lowest first, without gaps."""
    which, place = _bit_places(lengths)
    return np.packbits(((values[which] >> place) & 1).astype(np.uint8), bitorder="little").tobytes()


def _unpack_bits(data: Bytes, lengths: Ints) -> Ints:
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


def _checked_lengths(count: int, segments: Sequence[int] | None) -> Sequence[int]:
    lengths = [count] if segments is None else segments
    if sum(lengths) != count or min(lengths, default=0) < 0:
        raise CodecError(f"{count} numbers do not make segments of {sum(lengths)}")
    return lengths


def _slices(lengths: Sequence[int]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length
