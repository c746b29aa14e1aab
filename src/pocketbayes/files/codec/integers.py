"""Integers by asymmetric numeral systems, with a static or adaptive model per segment, whichever is smaller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pocketbayes.files.codec.bits import (
    Bytes,
    CodecError,
    Ints,
    Reader,
    checked_lengths,
    pack_bits,
    slices,
    unpack_bits,
    varints,
)

PRECISION_BITS = 24
TOTAL = 1 << PRECISION_BITS
MOST_TOKENS = 1 << 16
LARGEST = 1 << 62
DIRECT = 64
"""Values below this are tokens themselves if there are too many values; a token of others gives their leading bits."""
MIN_SYMBOLS_PER_VALUE = 64
"""Symbols per possible value above which every value is a token."""
FIRST_BLOCK = 32
"""Symbols before the first update of an adaptive model; later updates follow after a quarter more each."""
UNIT = 32
"""Count per symbol in an adaptive model, whose prior counts are fractions of a symbol."""
NEGLIGIBLE_FRACTION = 1e-3
"""Share of a segment's bits below which a table is used without trying an adaptive model, to save time."""
MOST_LEARNING = 1 << 27
"""Largest product of tokens and blocks, which bounds the decoder's time for adaptive models to a second."""
EIGHTH_POWERS = tuple(round(2**15 * 2 ** (i / 8)) for i in range(8))


def pack_ints(values: Ints, segments: Sequence[int] | None = None) -> bytes:
    """Encode signed integers, |v| < 2^62, by asymmetric numeral systems.

    Args:
        values: (n,).
        segments: Lengths that sum to n; by default one segment.
    """
    lengths = checked_lengths(len(values), segments)
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
    if spread >= max(DIRECT, len(values) // MIN_SYMBOLS_PER_VALUE) or not plans:
        plans.append(_plan(shifted, DIRECT, lengths))
    best = min(plans, key=lambda plan: plan.bits)
    return varints([low * 2 if low >= 0 else -low * 2 - 1, best.direct]) + best.write()


def unpack_ints(
    data: bytes | memoryview,
    count: int,
    segments: Sequence[int] | None = None,
    *,
    dtype: type[np.integer[Any]] = np.int32,
) -> Ints:
    """Invert `pack_ints`.

    Args:
        data: The bytes.
        count: The number of integers.
        segments: As in `pack_ints`.
        dtype: The type of the integers returned, where all of them fit into it; int64 else.

    Raises:
        CodecError: If the bytes cannot be those of `count` integers.
    """
    lengths = checked_lengths(count, segments)
    reader = Reader(data)
    if not count:
        reader.finish()
        return np.zeros(0, dtype=np.int64)
    sign, direct = reader.varint(), reader.varint()
    low = sign // 2 if sign % 2 == 0 else -(sign + 1) // 2
    if not 1 <= direct <= MOST_TOKENS or abs(low) >= LARGEST:
        raise CodecError("damaged numbers: impossible range")
    tokens = _read_tokens(reader, lengths, dtype)
    values = _from_tokens(tokens, direct, reader.rest())
    return _shift(values, low) if low else values


def _shift(values: Ints, low: int) -> Ints:
    """Add `low`, in place if the type allows."""
    limits = np.iinfo(values.dtype)
    if not (limits.min <= low and low + int(values.max()) <= limits.max):
        return values.astype(np.int64) + low
    values += low
    return values


@dataclass(frozen=True)
class _Plan:
    """An encoding of a sequence and its size in bits."""

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

        head = varints([self.alphabet])
        if self.alphabet == 1:
            return head + pack_bits(self.extra, self.extra_bits)
        parts: list[tuple[slice, Ints]] = []
        tables = []
        tokens = self.tokens.astype(np.int32)
        models = _Models(self.alphabet)
        for part, static in zip(slices(self.lengths), self.static):
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
        return head + modes + body + varints([len(words)]) + words.tobytes() + pack_bits(self.extra, self.extra_bits)


def _plan(values: Ints, direct: int, lengths: Sequence[int]) -> _Plan:
    tokens, extra, extra_bits = _to_tokens(values, direct)
    alphabet = int(tokens.max()) + 1
    raw = float(extra_bits.sum())
    if alphabet == 1:
        return _Plan(direct, tokens, extra, extra_bits, lengths, 1, [], raw)
    models = _Models(alphabet)
    learning = alphabet * sum(map(_blocks, lengths))
    static, total = [], raw
    for part in slices(lengths):
        counts = np.bincount(tokens[part], minlength=alphabet)
        fixed = 8 * alphabet + _bits(counts, _frequencies(_table_counts(_table(counts))))
        if 8 * alphabet < NEGLIGIBLE_FRACTION * fixed or learning > MOST_LEARNING:
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


def _read_tokens(reader: Reader, lengths: Sequence[int], dtype: type[np.integer[Any]]) -> Ints:
    from constriction import stream

    alphabet, count = reader.varint(), sum(lengths)
    if not 1 <= alphabet <= MOST_TOKENS + 8 * 64:
        raise CodecError("damaged numbers: impossible alphabet")
    tokens: Ints = np.zeros(count, dtype=dtype if alphabet - 1 <= np.iinfo(dtype).max else np.int32)
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
    learns = int(np.flatnonzero(modes == 0).max(initial=-1))  # no counting after the last adaptive segment
    for number, (part, static) in enumerate(zip(slices(lengths), modes)):
        own = next(table) if static else None
        for block in models.blocks(part, None if own is None else _table_counts(own)):
            size, frequencies = block.stop - block.start, models.frequencies()
            if own is None:
                tokens[block] = coder.decode(_model(stream, frequencies), size)
            else:
                tokens[block] = _decode_present(coder, stream, frequencies, own > 0, size).astype(dtype)
            if number <= learns:
                models.see_counts(np.bincount(tokens[block], minlength=alphabet))
    if not coder.is_empty():
        raise CodecError("damaged numbers: a stream with something left over")
    return tokens


def _decode_present(coder: Any, stream: Any, frequencies: Ints, present: npt.NDArray[np.bool_], size: int) -> Ints:
    """Decode tokens of which a table says that some do not occur: neighbours among these share a slot.

    The decoder searches the slots for each token, so that it takes a quarter of the time where few tokens occur.
    """
    starts = np.flatnonzero(present | np.concatenate([[True], present[:-1]]))
    if len(starts) == 1:
        raise CodecError("damaged numbers: an empty table")
    slots = coder.decode(_model(stream, np.add.reduceat(frequencies, starts)), size)
    shared = ~present[starts]
    if shared.any() and shared[slots].any():
        raise CodecError("damaged numbers: a token that its table leaves out")
    tokens: Ints = starts[slots]
    return tokens


class _Models:
    """The model of each block, from symbols known to encoder and decoder."""

    def __init__(self, alphabet: int) -> None:
        self.alphabet = alphabet
        self.past = np.zeros(alphabet, dtype=np.int64)
        self.weights = self.past

    def blocks(self, part: slice, counts: Ints | None) -> Iterator[slice]:
        """Yield the blocks of a segment: one with given counts, otherwise several with an update after each."""
        if counts is not None:
            self.weights = counts
            if part.stop > part.start:
                yield part
            return
        # Earlier segments count as one symbol per token, and half a symbol is added to each.
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
        """Return the frequencies of the last block."""
        return _frequencies(self.weights)

    def see_counts(self, counts: Ints) -> None:
        """Add the counts of a block."""
        self.past = self.past + counts


def _blocks(length: int) -> int:
    """Return the largest number of blocks for an adaptive model of this many symbols."""
    return 0 if not length else 5 if length <= 5 * FIRST_BLOCK else 5 + 4 * (length // FIRST_BLOCK).bit_length()


def _frequencies(weights: Ints) -> Ints:
    """Return integer frequencies of at least 1 that sum to 2^24, nearly proportional to the weights."""
    frequencies = 1 + weights * (TOTAL - len(weights)) // int(weights.sum())
    frequencies[weights.argmax()] += TOTAL - int(frequencies.sum())
    return frequencies


def _model(stream: Any, frequencies: Ints) -> Any:
    """Return the coder's model, which adds 1 to each frequency itself and needs no scaling to 2^24."""
    return stream.model.Categorical((frequencies - 1).astype(np.float64), perfect=False)


def _bits(counts: Ints, frequencies: Ints) -> float:
    return float(counts @ (PRECISION_BITS - np.log2(frequencies)))


def _table(counts: Ints) -> Bytes:
    """Return a byte per count: 0, or one more than eight times its logarithm, rounded."""
    logarithms = np.where(counts > 0, 1 + np.round(8 * np.log2(np.maximum(counts, 1))), 0)
    return logarithms.astype(np.uint8)


def _table_counts(table: Bytes) -> Ints:
    """Return the counts encoded in a table, scaled by 2^15, with 1 instead of 0."""
    eighths = np.maximum(table.astype(np.int64) - 1, 0)
    whole = eighths // 8
    excess = max(0, int(whole.max()) - 22)  # frequencies are computed in 64 bits
    powers = np.array(EIGHTH_POWERS, dtype=np.int64)[eighths % 8] << whole >> excess
    return np.where(table > 0, np.maximum(powers, 1), 1)


def _to_tokens(values: Ints, direct: int) -> tuple[Ints, Ints, Ints]:
    """Return the tokens of non-negative values, and the low bits and lengths of those from `direct` on."""
    if int(values.max()) < direct:
        return values, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    large = values >= direct
    big = values[large]
    length = np.frexp(big.astype(np.float64))[1].astype(np.int64)
    length -= big < (1 << (length - 1))  # rounding may have raised a number just below a power of two
    low = length - 4
    tokens = values.copy()
    tokens[large] = direct + 8 * (length - DIRECT.bit_length()) + ((big >> low) & 7)
    return tokens, big & ((1 << low) - 1), low


def _from_tokens(tokens: Ints, direct: int, data: Bytes) -> Ints:
    if int(tokens.max()) < direct:
        if len(data):
            raise CodecError("damaged numbers: bytes left over")
        return tokens
    large = tokens >= direct
    code = tokens[large].astype(np.int64) - direct
    low = code // 8 + DIRECT.bit_length() - 4
    if direct != DIRECT or int(low.max()) > 63 - 4:
        raise CodecError("damaged numbers: too large")
    values = tokens.astype(np.int64)
    values[large] = ((8 + code % 8) << low) + unpack_bits(data, low)
    return values
