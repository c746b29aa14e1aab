"""The low-rank Gaussian: draws, marginals and the exact KL divergence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import pocketbayes as pb
from pocketbayes.posteriors import LowRank
from pocketbayes.posteriors.priors import Normal, ScaleMixture

LAYOUT = pb.Layout.of(nn.Linear(4, 3))
INDEX = torch.tensor([1, 4, 5, 9, 11])
CASES = {  # k, columns, which have a diagonal part, positions
    "diagonal": (12, 0, True, None),
    "both": (12, 3, True, None),
    "more columns than weights": (5, 9, True, INDEX),
    "some": (5, 2, True, INDEX),
    "dense": (5, 5, False, INDEX),
    "partly without a diagonal": (5, 3, torch.tensor([True, False, True, False, True]), INDEX),
}


def make(name: str) -> tuple[LowRank, Tensor, Tensor]:
    """Return the posterior, and its covariance and mean over the random weights."""
    size, columns, has_std, index = CASES[name]
    std, factor = (torch.rand(size) + 0.1) * has_std, torch.randn(size, columns)
    mean = torch.linspace(-1, 1, 12)
    # In double precision: a dense factor may be nearly singular, and rounding would then decide the determinant.
    covariance = torch.diag(std.double().square()) + factor.double() @ factor.double().T
    return LowRank(LAYOUT, mean, std, factor, index), covariance, mean if index is None else mean[index]


@pytest.mark.parametrize("name", CASES)
def test_lowrank_draws_have_the_covariance(name: str) -> None:
    posterior, covariance, _ = make(name)
    draws = torch.stack([posterior.sample() for _ in range(8000)])
    full = torch.zeros(12, 12)
    index = torch.arange(12) if posterior.index is None else posterior.index
    full[index[:, None], index] = covariance.float()
    # the variance of a sample covariance is (S_ii S_jj + S_ij^2) / draws
    spread = ((torch.outer(full.diagonal(), full.diagonal()) + full.square()) / 8000).sqrt()
    assert bool(((draws.T.cov() - full).abs() <= 6 * spread + 1e-9).all())
    assert bool(((draws.mean(0) - posterior.mean).abs() <= 6 * (full.diagonal() / 8000).sqrt() + 1e-6).all())
    torch.testing.assert_close(posterior.moments()[1], full.diagonal().sqrt())


@pytest.mark.parametrize("name", CASES)
def test_lowrank_kl_is_that_of_the_multivariate_normal(name: str) -> None:
    posterior, covariance, mean = make(name)
    centre = torch.randn(12)
    for prior in (Normal(0.7), Normal(1.3, centre)):
        at = torch.zeros(12) if prior.centre is None else centre
        at = at if posterior.index is None else at[posterior.index]
        exact = kl_divergence(
            MultivariateNormal(mean.double(), covariance),
            MultivariateNormal(at.double(), prior.std**2 * torch.eye(len(at)).double()),
        )
        torch.testing.assert_close(posterior.kl(prior).double(), exact, rtol=1e-4, atol=1e-4)


def test_lowrank_kl_to_another_prior_agrees_with_monte_carlo() -> None:
    posterior, covariance, mean = make("both")
    prior = ScaleMixture(0.5, 1.0, 0.2)
    q = MultivariateNormal(mean, covariance.float())
    draws = q.sample((50000,))
    each = q.log_prob(draws) - prior.log_prob(draws).sum(1)
    estimates = torch.stack([posterior.kl(prior) for _ in range(1500)])
    error = (each.var() / 50000 + estimates.var() / 1500).sqrt()
    assert abs(float(estimates.mean() - each.mean())) < 6 * float(error)


def test_lowrank_kl_of_a_singular_covariance_is_infinite() -> None:
    line = LowRank(LAYOUT, torch.zeros(12), torch.zeros(2), torch.ones(2, 1), torch.tensor([0, 1]))
    assert float(line.kl(Normal())) == torch.inf
    std, factor = torch.tensor([0.5, 0.0]), torch.tensor([[0.5], [0.0]])
    half = LowRank(LAYOUT, torch.zeros(12), std, factor, torch.tensor([0, 1]))
    torch.testing.assert_close(half.kl(Normal()), Normal().kl(torch.tensor(0.0), torch.tensor(0.5**0.5)))


def test_lowrank_stores_its_factors() -> None:
    posterior, _, _ = make("some")
    assert posterior.stored() == {"means": 12, "stds": 5, "factors": 10, "positions": 5}
    assert posterior.census().random == 5
    again = LowRank.restore(LAYOUT, posterior.state_dict(), posterior.config())
    noise = torch.randn(posterior.noise_size)
    assert torch.equal(posterior.sample(noise), again.sample(noise))
