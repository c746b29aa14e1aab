"""Context models for the codes of weights."""

from __future__ import annotations

import numpy as np
import pytest

from pocketbayes.files.codec import CodecError, pack_codes, pack_ints, unpack_codes

SHAPES = [(8, 3, 3, 3), (16, 8, 3, 3), (12, 1, 5), (10, 16), (7,), (0, 4)]


def scaled_codes(shapes: list[tuple[int, ...]], seed: int = 0) -> np.ndarray:
    """Return codes whose magnitude depends on row and column."""
    random = np.random.default_rng(seed)
    parts = []
    for shape in shapes:
        rows = np.exp(random.normal(size=shape[:1])).reshape(-1, *[1] * (len(shape) - 1))
        columns = np.exp(random.normal(size=shape[1:2])).reshape(1, -1, *[1] * (len(shape) - 2)) if shape[1:] else 1.0
        parts.append(np.round(2 * rows * columns * random.normal(size=shape)).astype(np.int64).reshape(-1))
    return np.concatenate(parts) + 40


def test_context_codes_survive_the_round_trip() -> None:
    values = scaled_codes(SHAPES)
    packed = pack_codes(values, SHAPES)
    np.testing.assert_array_equal(unpack_codes(packed, len(values), SHAPES), values)
    assert len(unpack_codes(pack_codes(values[:0], []), 0, [])) == 0


def test_contexts_pay_where_rows_and_columns_differ_in_scale() -> None:
    shapes = [(64, 64, 3, 3)]
    values = scaled_codes(shapes)
    assert len(pack_codes(values, shapes)) < 0.9 * len(pack_ints(values))


def test_context_codes_refuse_damage() -> None:
    values = scaled_codes(SHAPES)
    packed = bytearray(pack_codes(values, SHAPES))
    with pytest.raises(CodecError):
        unpack_codes(bytes(packed), len(values) - 1, SHAPES)
    with pytest.raises(CodecError):
        unpack_codes(bytes(packed[: len(packed) // 2]), len(values), SHAPES)
    random = np.random.default_rng(0)
    for _ in range(300):
        damaged = packed.copy()
        damaged[int(random.integers(len(damaged)))] = int(random.integers(256))
        try:
            found = unpack_codes(bytes(damaged), len(values), SHAPES)
        except CodecError:
            continue
        assert len(found) == len(values)
