"""Entropy-constrained scalar codebooks."""

from __future__ import annotations

import pytest
import torch

from pocketbayes.plane.codes import Codebook, entropy_bits, fit_codebook


def costs(values: torch.Tensor, codebook: Codebook) -> torch.Tensor:
    """Return every value's cost under every code, (n, K)."""
    return (values[:, None] - codebook.centres).square() + codebook.lam * codebook.bits


@pytest.mark.parametrize("lam", [0.01, 0.1, 1.0])
def test_codes_minimise_distance_and_code_length(lam: float) -> None:
    torch.manual_seed(0)
    centres = torch.randn(20).sort().values
    codebook = Codebook(centres, 8 * torch.rand(20), lam)
    values = 3 * torch.randn(500)
    every = costs(values, codebook)
    taken = every.gather(1, codebook.assign(values)[:, None])[:, 0]
    torch.testing.assert_close(taken, every.min(1).values, rtol=1e-4, atol=1e-5)


def test_codes_prefer_the_shorter_of_equal_centres() -> None:
    codebook = Codebook(torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([3.0, 1.0, 2.0, 1.0]), 0.1)
    assert codebook.assign(torch.tensor([-1.0, 0.1, 2.0])).tolist() == [1, 1, 3]


def test_codes_trade_bits_for_distance() -> None:
    torch.manual_seed(0)
    values = 0.05 * torch.randn(20_000)
    found = []
    for lam in (0.001, 0.03, 0.3):
        codebook = fit_codebook(values, lam)
        codes = codebook.assign(values)
        error = float((values - codebook.centres[codes]).square().mean() / values.var())
        found.append((entropy_bits(torch.bincount(codes)), error, len(codebook)))
    bits, errors, codes_used = zip(*found)
    assert bits[0] > bits[1] > bits[2]
    assert errors[0] < errors[1] < errors[2]
    assert codes_used[0] > codes_used[1] > codes_used[2]
    # A uniform quantiser with entropy coding is within a quarter bit of the rate-distortion function of a Gaussian.
    for rate, error in zip(bits[:2], errors[:2]):
        assert rate < 0.5 * torch.log2(torch.tensor(1 / error)) + 0.27


def test_codes_keep_outliers_separately() -> None:
    torch.manual_seed(0)
    values = torch.cat([torch.randn(10_000), torch.tensor([80.0, -200.0])])
    codebook = fit_codebook(values, 0.001)
    back = codebook.centres[codebook.assign(values)]
    torch.testing.assert_close(back[-2:], values[-2:], rtol=0.05, atol=0)


def test_codes_are_independent_of_the_scale() -> None:
    torch.manual_seed(0)
    values = torch.randn(2000).double()
    one, other = fit_codebook(values, 0.1), fit_codebook(1e-4 * values, 0.1)
    torch.testing.assert_close(1e-4 * one.centres, other.centres)
    torch.testing.assert_close(one.bits, other.bits)


@pytest.mark.parametrize("values", [torch.zeros(10), torch.ones(10), torch.tensor([3.0])])
def test_codes_of_constant_values_are_one_code(values: torch.Tensor) -> None:
    codebook = fit_codebook(values, 0.1)
    torch.testing.assert_close(codebook.centres[codebook.assign(values)], values)
    assert entropy_bits(torch.bincount(codebook.assign(values))) == 0
