"""Codecs: exact inverses, sizes near the entropy, a reference decoder, and damaged input."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbayes.files import codec
from pocketbayes.files.codec import CodecError

quick = settings(max_examples=60, deadline=None)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    """Return a strategy for integers of any size and spread, with segments that may be empty."""
    lengths = draw(st.lists(st.integers(0, 300), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    spread = draw(st.sampled_from([1, 2, 3, 50, 64, 65, 300, 2**16 - 1, 2**16, 2**20, 2**40, 2**61]))
    values = rng.integers(0, spread, sum(lengths), dtype=np.int64)
    if draw(st.booleans()):
        values[rng.random(len(values)) < 0.9] = 0
    return values - draw(st.sampled_from([0, 1, spread // 2, spread])), lengths


@quick
@given(sequences())
def test_codec_restores_integers(case: tuple[np.ndarray, list[int]]) -> None:
    values, lengths = case
    data = codec.pack_ints(values, lengths)
    assert np.array_equal(codec.unpack_ints(data, len(values), lengths), values)
    assert np.array_equal(codec.unpack_ints(codec.pack_ints(values), len(values)), values)


@pytest.mark.parametrize("value", [2**k + d for k in (6, 7, 31, 32, 52, 53, 54, 60, 61) for d in (-1, 0, 1)])
def test_codec_restores_large_integers(value: int) -> None:
    values = np.array([value, 0, -value, value - 1], dtype=np.int64)
    assert np.array_equal(codec.unpack_ints(codec.pack_ints(values), 4), values)


def test_codec_refuses_integers_out_of_range() -> None:
    with pytest.raises(ValueError, match="below 2"):
        codec.pack_ints(np.array([2**62]))


@quick
@given(st.integers(0, 400), st.integers(1, 5), st.integers(0, 99))
def test_codec_restores_positions(count: int, layers: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 500, layers)
    edges = [0, *np.cumsum(sizes).tolist()]
    positions = np.sort(rng.permutation(edges[-1])[:count]).astype(np.int64)
    data = codec.pack_positions(positions, edges)
    assert np.array_equal(codec.unpack_positions(data, len(positions), edges), positions)


@quick
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9), st.integers(0, 99))
def test_codec_folds_ranges_that_are_used_once(outliers: int, blends: int, gaussians: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = [(gaussians, outliers), (gaussians + outliers, blends)]
    kinds = rng.permutation(np.repeat([0, 1, 2], [20, outliers, blends]))
    values = rng.integers(0, gaussians, len(kinds))
    for number, (first, count) in enumerate(runs, 1):
        values[kinds == number] = np.arange(first, first + count)
    folded = codec.fold(values, runs)
    assert folded is not None
    assert folded.max() <= gaussians + 1
    assert np.array_equal(codec.unfold(folded, runs), values)


def test_codec_does_not_fold_ranges_in_another_order() -> None:
    assert codec.fold(np.array([0, 3, 2]), [(2, 2)]) is None
    assert codec.fold(np.array([0, 2, 2]), [(2, 2)]) is None
    assert codec.fold(np.array([0, 2, 3, 9]), [(2, 2)]) is None
    assert codec.fold(np.array([0, 2]), [(2, 2)]) is None


@quick
@given(st.binary(max_size=800), st.sampled_from([1, 2, 4, 8]))
def test_codec_restores_rows_of_bytes(data: bytes, width: int) -> None:
    rows = np.frombuffer(data[: len(data) // width * width], dtype=np.uint8).reshape(-1, width)
    for deflate in (False, True):
        packed = codec.pack_exactly(rows, deflate=deflate)
        assert np.array_equal(codec.unpack_exactly(packed, len(rows), width, deflate=deflate), rows)


@quick
@given(sequences(), st.sampled_from([2, 4, 7, 8]))
def test_codec_steps_err_by_half_a_step_at_most(case: tuple[np.ndarray, list[int]], bits: int) -> None:
    values, lengths = (case[0] / 2**30).astype(np.float32), case[1]
    again = codec.unpack_in_steps(codec.pack_in_steps(values, bits, lengths), len(values), lengths)
    start = 0
    for length in lengths:
        own, got = values[start : start + length], again[start : start + length]
        if length:
            step = float(own.max() - own.min()) / (2**bits - 1)
            assert np.abs(own - got).max() <= step / 2 * 1.01 + 1e-6 * np.abs(own).max()
        start += length


def test_codec_refuses_steps_of_infinite_numbers() -> None:
    with pytest.raises(ValueError, match="finite"):
        codec.pack_in_steps(np.array([1.0, np.inf], dtype=np.float32), 8)


def entropy_bytes(values: np.ndarray) -> float:
    share = np.bincount(values)[np.bincount(values) > 0] / len(values)
    return float(-(share * np.log2(share)).sum() * len(values) / 8)


@pytest.mark.parametrize("gaussians", [4, 16, 64, 256])
def test_codec_indices_take_one_percent_over_entropy(gaussians: int) -> None:
    """Layers like those of a ResNet-20, each with its own distribution."""
    rng = np.random.default_rng(0)
    lengths = [432, *[2304] * 6, 4608, *[9216] * 5, 18432, *[36864] * 5, 640]
    layers = [rng.choice(gaussians, n, p=rng.dirichlet(np.full(gaussians, 2.0))) for n in lengths]
    data = codec.pack_ints(np.concatenate(layers).astype(np.int64), lengths)
    tables = gaussians * len(lengths)
    assert len(data) <= 1.01 * (sum(map(entropy_bytes, layers)) + tables)
    assert len(data) < len(codec.pack_ints(np.concatenate(layers).astype(np.int64)))  # a model per layer saves bytes


@pytest.mark.parametrize("density", [0.3, 0.05, 0.01])
def test_codec_positions_take_one_percent_over_entropy(density: float) -> None:
    rng = np.random.default_rng(0)
    positions = np.flatnonzero(rng.random(300_000) < density)
    ideal = -(density * math.log2(density) + (1 - density) * math.log2(1 - density)) * 300_000 / 8
    assert len(codec.pack_positions(positions, [0, 300_000])) < 1.01 * ideal + 64


def test_codec_chooses_static_and_adaptive_models() -> None:
    """A table for many symbols of few kinds, none for few symbols of many kinds; never worse than the better one."""
    rng = np.random.default_rng(0)
    few_kinds, many_kinds = rng.integers(0, 3, 50_000), rng.integers(0, 300, 500)
    assert modes_of(codec.pack_ints(few_kinds.astype(np.int64))) == [1]
    assert modes_of(codec.pack_ints(many_kinds.astype(np.int64))) == [0]


def test_codec_constants_cost_nothing() -> None:
    assert len(codec.pack_ints(np.full(100_000, 7, dtype=np.int64))) <= 4


@pytest.mark.parametrize("deflate", [False, True])
def test_codec_shrinks_exact_floats_and_restores_them(deflate: bool) -> None:
    rows = np.random.default_rng(0).normal(0, 0.05, 20_000).astype("<f4").view(np.uint8).reshape(-1, 4)
    packed = codec.pack_exactly(rows, deflate=deflate)
    assert len(packed) < 0.86 * rows.nbytes
    assert np.array_equal(codec.unpack_exactly(packed, len(rows), 4, deflate=deflate), rows)


def test_codec_refuses_a_deflated_part_of_another_length() -> None:
    rows = np.full((1000, 1), 7, dtype=np.uint8)
    packed = codec.pack_exactly(rows, deflate=True)
    for count in (999, 1001):
        with pytest.raises(CodecError, match="wrong length"):
            codec.unpack_exactly(packed, count, 1, deflate=True)
    with pytest.raises(CodecError, match="damaged numbers"):
        codec.unpack_exactly(bytes([4, 255, 255, 255, 255]), 1000, 1, deflate=True)


def test_codec_refuses_a_token_that_its_table_leaves_out() -> None:
    values = np.repeat([0, 40, 60], [500_000, 300_000, 200_000]).astype(np.int64)
    packed = bytearray(codec.pack_ints(values))
    table = 4  # after the smallest value, d, A and the modes, a byte each
    assert [place for place, entry in enumerate(packed[table : table + 61]) if entry] == [0, 40, 60]
    packed[table + 40] = 0
    with pytest.raises(CodecError, match="damaged numbers"):
        codec.unpack_ints(bytes(packed), len(values))


@pytest.mark.parametrize("beyond", [-1, 256])
def test_codec_refuses_numbers_beyond_a_byte(beyond: int) -> None:
    numbers = codec.pack_ints(np.array([*range(9), beyond], dtype=np.int64))
    with pytest.raises(CodecError, match="beyond 255"):
        codec.unpack_exactly(bytes([len(numbers)]) + numbers, 10, 1)
    with pytest.raises(CodecError, match="impossible steps"):
        codec.unpack_in_steps(np.array([0, 1], dtype="<f4").tobytes() + numbers, 10)


@quick
@given(st.binary(max_size=200), st.integers(0, 300))
def test_codec_reads_any_bytes_or_raises_its_error(data: bytes, count: int) -> None:
    for unpack in (
        lambda: codec.unpack_ints(data, count),
        lambda: codec.unpack_exactly(data, count, 4),
        lambda: codec.unpack_exactly(data, count, 4, deflate=True),
        lambda: codec.unpack_in_steps(data, count),
        lambda: codec.unpack_positions(data, count, [0, 100, 400]),
    ):
        with contextlib.suppress(CodecError):
            assert len(unpack()) == count


def test_codec_never_crashes_on_damage() -> None:
    chooser = random.Random(0)
    values = np.random.default_rng(0).geometric(0.01, 400).astype(np.int64)
    whole = codec.pack_ints(values, [100, 300])
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chooser.randrange(len(whole))] ^= 1 << chooser.randrange(8)
        cut = bytes(damaged[: chooser.randrange(len(damaged))])
        for data in (bytes(damaged), cut):
            with contextlib.suppress(CodecError):
                assert len(codec.unpack_ints(data, 400, [100, 300])) == 400


# -- a second reader, from docs/format.md alone -----------------------------------------------------------------------


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def modes_of(data: bytes) -> list[int]:
    place = 0
    for _ in range(3):
        _, place = read_varint(data, place)
    return [data[place] & 1]


def reference_unpack(data: bytes, lengths: list[int]) -> list[int]:
    """Decode integers as specified in docs/format.md, in plain Python."""
    sign, place = read_varint(data, 0)
    direct, place = read_varint(data, place)
    alphabet, place = read_varint(data, place)
    low = sign // 2 if sign % 2 == 0 else -(sign + 1) // 2
    tokens: list[int] = []
    if alphabet == 1:
        tokens = [0] * sum(lengths)
    else:
        modes = [data[place + i // 8] >> i % 8 & 1 for i in range(len(lengths))]
        place += -(-len(lengths) // 8)
        tables = []
        for _ in range(sum(modes)):
            tables.append(list(data[place : place + alphabet]))
            place += alphabet
        words, place = read_varint(data, place)
        stack = [int.from_bytes(data[place + 4 * i : place + 4 * i + 4], "little") for i in range(words)]
        place += 4 * words
        state = 0
        for _ in range(2):
            if stack:
                state = state << 32 | stack.pop()
        past = [0] * alphabet
        for length, mode in zip(lengths, modes):
            own = [0] * alphabet
            table = tables.pop(0) if mode else None
            done = 0
            while done < length:
                if table is not None:
                    block = length
                    whole = [max(entry - 1, 0) // 8 for entry in table]
                    excess = max(0, max(whole) - 22)
                    powers = [round(2**15 * 2 ** (i / 8)) for i in range(8)]
                    weights = [
                        max(powers[(entry - 1) % 8] << w >> excess, 1) if entry else 1 for entry, w in zip(table, whole)
                    ]
                else:
                    block = min(max(32, done // 4), length - done)
                    total = sum(past)
                    weights = [(32 * alphabet * p // total if total else 0) + 16 + 32 * o for p, o in zip(past, own)]
                all_ = sum(weights)
                frequencies = [1 + w * (2**24 - alphabet) // all_ for w in weights]
                frequencies[weights.index(max(weights))] += 2**24 - sum(frequencies)
                starts = [0, *itertools.accumulate(frequencies)]
                fresh = []
                for _ in range(block):
                    slot = state % 2**24
                    token = bisect.bisect_right(starts, slot) - 1
                    state = (state >> 24) * frequencies[token] + slot - starts[token]
                    if state < 2**32 and stack:
                        state = state << 32 | stack.pop()
                    fresh.append(token)
                for token in fresh:
                    own[token] += 1
                tokens += fresh
                done += block
            past = [p + o for p, o in zip(past, own)]
    bits = int.from_bytes(data[place:], "little")
    values = []
    for token in tokens:
        if token < direct:
            values.append(token + low)
            continue
        extra = (token - direct) // 8 + 3
        top = 8 + (token - direct) % 8
        values.append((top << extra) + bits % 2**extra + low)
        bits >>= extra
    return values


@settings(max_examples=25, deadline=None)
@given(sequences())
def test_codec_agrees_with_an_independent_reader(case: tuple[np.ndarray, list[int]]) -> None:
    values, lengths = case
    values = np.minimum(np.abs(values), 2**20) % 150 if len(set(values.tolist())) > 150 else values
    if len(values):
        assert reference_unpack(codec.pack_ints(values, lengths), lengths) == values.tolist()


def test_codec_agrees_with_the_specified_reader() -> None:
    rng = np.random.default_rng(1)
    for values in (rng.integers(0, 5, 3000), rng.geometric(0.01, 400), rng.integers(-(2**50), 2**50, 60)):
        data = codec.pack_ints(values.astype(np.int64))
        assert reference_unpack(data, [len(values)]) == values.tolist()


def test_codec_block_bound_holds_and_is_tight() -> None:
    """The decoder's bound on learning is at least what the encoder needs, and not many times more."""
    from pocketbayes.files.codec.integers import FIRST_BLOCK, _blocks, _Models

    for length in (*range(1, 2000, 7), 5 * FIRST_BLOCK, 5 * FIRST_BLOCK + 1, 10**5, 10**7, 10**9):
        taken = sum(1 for _ in _Models(2).blocks(slice(0, length), None))
        assert taken <= _blocks(length) <= max(5, 3 * taken), length
    assert _blocks(0) == 0
    assert _blocks(5 * FIRST_BLOCK) == 5


def test_codec_does_not_fold_without_candidates() -> None:
    assert codec.fold(np.arange(3), []) is None
    assert codec.fold(np.zeros(0, dtype=np.int64), [(0, 0)]) is None
