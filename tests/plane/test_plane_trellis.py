"""Codes on a trellis: their sides, the search, the gain over codes on a line, and what files keep of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbayes.plane import trellis
from pocketbayes.plane.codes import entropy_bits, fit_codebook
from pocketbayes.plane.trellis import (
    TrellisCodebook,
    TrellisSearch,
    code_paths,
    drop_sides,
    fit_trellis,
    path_length,
    path_order,
    restore_sides,
    sides_of,
)


def search(values: Tensor, codebook: TrellisCodebook, before: Tensor | None = None) -> Tensor:
    found = TrellisSearch(codebook)
    places = torch.zeros_like(values, dtype=torch.long)
    found.start(places[..., :0] if before is None else before)
    return code_paths(values, places, None, found)[0]


def small_codebook() -> TrellisCodebook:
    own = torch.tensor([-2.5, -1.4, 0.4, 1.6])
    return TrellisCodebook(torch.cat([own, -own]), torch.tensor([3.0, 1.5, 1.0, 2.0]), 0.3)


def test_sides_follow_the_recursion() -> None:
    parities = np.random.default_rng(0).integers(0, 2, (5, 11))
    sides = sides_of(parities)
    for row, found in zip(parities, sides):
        side, previous = 0, 0
        for parity, own in zip(row, found):
            assert own == side
            side, previous = previous ^ int(parity), side


def test_search_finds_the_best_path_of_all() -> None:
    torch.manual_seed(0)
    codebook, values = small_codebook(), 2 * torch.randn(1, 20, 5)
    cost = []
    for codes in itertools.product(range(4), repeat=5):
        side = sides_of(np.array([codes]) % 2)[0]
        index = torch.tensor(codes) + 4 * torch.from_numpy(side)
        distances = (values - codebook.centres[index]).square().sum(-1)
        cost.append(distances + codebook.lam * codebook.bits[torch.tensor(codes)].sum())
    index = search(values, codebook)
    distances = (values - codebook.centres[index]).square().sum(-1)
    found = distances + codebook.lam * codebook.bits[index % 4].sum(-1)
    torch.testing.assert_close(found, torch.stack(cost).amin(0))


def test_search_continues_after_earlier_codes() -> None:
    torch.manual_seed(0)
    codebook, values = small_codebook(), 2 * torch.randn(1, 30, 9)
    first = search(values[..., :4], codebook)
    codes = torch.cat([first, search(values[..., 4:], codebook, first)], dim=2)[0]
    np.testing.assert_array_equal(sides_of((codes % 4 % 2).numpy()), (codes // 4).numpy())


@pytest.mark.numerics
@pytest.mark.parametrize("lam", [0.03, 0.1])
def test_trellis_takes_fewer_bits_than_a_line(lam: float) -> None:
    torch.manual_seed(0)
    values = torch.randn(1, 1024, 128)
    line, codebook = fit_codebook(values.flatten(), lam), fit_trellis(values.flatten(), lam)
    on_line, index = line.assign(values), search(values, codebook)
    errors = [float((values - own.centres[k]).square().mean()) for own, k in ((line, on_line), (codebook, index))]
    bits = [entropy_bits(torch.bincount(codes.flatten())) for codes in (on_line, index % codebook.half)]
    gain = bits[0] - bits[1] + 0.5 * math.log2(errors[0] / errors[1])  # bits saved at equal error
    assert gain > 0.12


def test_trellis_fits_constants_and_few_values() -> None:
    for values in (torch.zeros(50), torch.full((3,), 2.0), torch.randn(1), torch.randn(0)):
        codebook = fit_trellis(values, 0.1)
        assert len(codebook) >= 4
        assert bool(codebook.centres.isfinite().all())
        index = search(values.view(1, -1, 1), codebook)[0, :, 0]
        torch.testing.assert_close(codebook.centres[index], values, atol=0.7, rtol=0)


def test_trim_keeps_values_and_sides() -> None:
    codebook = small_codebook()
    index = search(0.5 * torch.randn(1, 50, 8), codebook)
    trimmed, codes = codebook.trim(index)
    torch.testing.assert_close(trimmed.centres[codes], codebook.centres[index])
    np.testing.assert_array_equal(sides_of((codes % trimmed.half % 2)[0].numpy()), (codes // trimmed.half)[0].numpy())


def test_path_order_is_a_permutation_whose_parts_are_spread() -> None:
    for length in (0, 1, 9, 144, 2304):
        order = path_order(length)
        assert sorted(order) == list(range(length))
    half = np.sort(path_order(1000)[:500])
    assert np.diff(half).max() <= 3


@pytest.mark.parametrize(("row", "length"), [(0, 0), (1, 1), (2304, 2304), (2306, 1153), (4608, 2304), (2311, 1)])
def test_path_length_divides_the_row(row: int, length: int) -> None:
    assert path_length(row) == length


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=4), max_size=4), st.integers(2, 9), st.integers(0, 99))
def test_sides_are_restored(shapes: list[list[int]], half: int, seed: int) -> None:
    size = sum(math.prod(shape) for shape in shapes)
    codes = np.random.default_rng(seed).integers(0, half, size)
    whole = restore_sides(codes, half, shapes)
    np.testing.assert_array_equal(whole % half, codes)
    kept, found = drop_sides(whole, 2 * half, shapes)
    assert found == half
    np.testing.assert_array_equal(kept, codes)


def test_sides_that_are_not_determined_are_kept() -> None:
    codes = restore_sides(np.arange(24) % 4, 4, [(3, 8)])
    codes[0] = (codes[0] + 4) % 8
    kept, half = drop_sides(codes, 8, [(3, 8)])
    assert half is None
    np.testing.assert_array_equal(kept, codes)
    assert drop_sides(np.arange(6) % 3, 3, [(2, 3)])[1] is None


def test_long_rows_are_cut_into_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trellis, "LONGEST_PATH", 5)
    codes = np.random.default_rng(0).integers(0, 6, 40)
    whole = restore_sides(codes, 6, [(4, 10)]).reshape(8, 5)
    order = path_order(5)
    np.testing.assert_array_equal(whole[:, order] // 6, sides_of(codes.reshape(8, 5)[:, order] % 2))


def test_errors_are_those_of_the_chosen_path() -> None:
    torch.manual_seed(0)
    codebook, values = small_codebook(), 2 * torch.randn(2, 10, 6)
    shares = torch.zeros(2, 6, 6) + torch.eye(6)
    for own in (None, shares):
        found, places = TrellisSearch(codebook), torch.zeros_like(values, dtype=torch.long)
        found.start(places[..., :0])
        _, decoded, errors = code_paths(values, places, own, found)
        torch.testing.assert_close(errors, values - decoded)
