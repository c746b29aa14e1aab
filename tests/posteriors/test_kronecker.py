"""The Gaussian with Kronecker factors, compared with the dense covariance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import pocketbayes as pb
from pocketbayes.posteriors import Kronecker, LowRank
from pocketbayes.posteriors.priors import Normal

LAYOUT = pb.Layout.of(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), bayesian_bias=True)
SLOTS = (2, 3)
"""Positions of the second layer's weight and bias: 12 and 3 of 27 weights."""
FIRST = 12


def rotation(size: int) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size))[0]


@pytest.fixture
def pair() -> tuple[Kronecker, LowRank]:
    """Return the same distribution with factors and with a dense covariance."""
    torch.manual_seed(0)
    mean, std = torch.randn(27), torch.rand(15) + 0.1
    rows, columns, bias_rows = rotation(3), rotation(4), rotation(3)
    factor = torch.block_diag(torch.kron(rows, columns), bias_rows) * std
    flat_rows = torch.cat([rows.flatten(), bias_rows.flatten()])
    flat_columns = torch.cat([columns.flatten(), torch.ones(1)])
    factored = Kronecker(LAYOUT, mean, SLOTS, std, flat_rows, flat_columns)
    return factored, LowRank(LAYOUT, mean, torch.zeros(15), factor, torch.arange(FIRST, 27))


def test_kronecker_dense_covariance_is_the_product(pair: tuple[Kronecker, LowRank]) -> None:
    factored, dense = pair
    directions = factored.project(torch.eye(27))
    expected = torch.zeros(27, 27)
    expected[FIRST:, FIRST:] = dense.factor @ dense.factor.T
    torch.testing.assert_close(directions @ directions.T, expected)
    torch.testing.assert_close(factored.moments()[1], expected.diagonal().sqrt())
    torch.testing.assert_close(factored.project(torch.eye(27)[:, FIRST:], FIRST), directions)


def test_kronecker_draws_equal_the_dense_form(pair: tuple[Kronecker, LowRank]) -> None:
    factored, dense = pair
    noise = torch.randn(6, 15)
    expected = torch.stack([dense.sample(torch.cat([torch.zeros(15), row])) for row in noise])
    torch.testing.assert_close(factored.draws(noise), expected)
    torch.testing.assert_close(factored.sample(noise[0]), expected[0])
    for start, stop in ((0, FIRST), (8, 24), (24, 27)):
        torch.testing.assert_close(factored.draws(noise, start, stop), expected[:, start:stop])
        padded = torch.cat([torch.zeros(6, 15), noise], 1)
        torch.testing.assert_close(dense.draws(padded, start, stop), expected[:, start:stop])


def test_kronecker_kl_is_that_of_the_multivariate_normal(pair: tuple[Kronecker, LowRank]) -> None:
    factored, dense = pair
    covariance = (dense.factor @ dense.factor.T).double()
    prior = MultivariateNormal(torch.zeros(15).double(), 0.7**2 * torch.eye(15).double())
    exact = kl_divergence(MultivariateNormal(factored.mean[FIRST:].double(), covariance), prior)
    torch.testing.assert_close(factored.kl(Normal(0.7)).double(), exact, rtol=1e-4, atol=1e-4)


def test_kronecker_stores_its_factors(pair: tuple[Kronecker, LowRank]) -> None:
    factored, _ = pair
    assert factored.stored() == {"means": 27, "stds": 15, "factors": 9 + 16 + 9 + 1}
    assert factored.census().random == 15
    again = Kronecker.restore(LAYOUT, factored.state_dict(), factored.config())
    noise = torch.randn(15)
    assert torch.equal(factored.sample(noise), again.sample(noise))


@pytest.mark.parametrize("slots", [[-1, 2], [2, 2], [3, 2], [2, 4]])
def test_kronecker_refuses_unknown_slots(slots: list[int], pair: tuple[Kronecker, LowRank]) -> None:
    with pytest.raises(pb.UserError, match="layout with 4"):
        Kronecker.restore(LAYOUT, pair[0].state_dict(), {"slots": slots})
