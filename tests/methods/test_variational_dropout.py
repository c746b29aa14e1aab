"""Sparse variational dropout: its prior against quadrature, and the weights it removes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.integrate import quad

import pocketbayes as pb
from cases import smooth, tiny_data
from pocketbayes.posteriors import Sparse
from pocketbayes.posteriors.priors import LogUniform


def exact_kl(alpha: float) -> float:
    """Compute the KL up to its constant: E log|e| - log(alpha) / 2 with e ~ N(1, alpha)."""
    std = math.sqrt(alpha)

    def density(e: float) -> float:
        return math.exp(-0.5 * ((e - 1) / std) ** 2) / (std * math.sqrt(2 * math.pi)) * math.log(abs(e))

    edges = (1 - 12 * std, 0.0, 1.0, 1 + 12 * std)
    parts = [quad(density, a, b, limit=400)[0] for a, b in itertools.pairwise(edges) if a < b]
    return sum(parts) - 0.5 * math.log(alpha)


@pytest.mark.parametrize(("one", "other"), [(0.05, 1.0), (0.3, 3.0), (1.0, 20.0)])
def test_log_uniform_kl_differs_as_quadrature_says(one: float, other: float) -> None:
    std = torch.tensor([one, other], dtype=torch.float64).sqrt()
    first, second = LogUniform().kl(torch.ones(2, dtype=torch.float64), std).tolist()
    assert first - second == pytest.approx(exact_kl(one) - exact_kl(other), abs=0.03)


def test_log_uniform_kl_is_scale_free_and_finite() -> None:
    mean, std = torch.tensor([1e-3, 1.0, 0.0]), torch.tensor([1e-4, 0.1, 0.1])
    kl = LogUniform().kl(mean, std)
    assert kl[0] == pytest.approx(float(kl[1]), rel=1e-5)
    assert kl.isfinite().all()
    assert kl[2] == pytest.approx(0.0, abs=1e-6)


def test_sparse_vd_removes_noisy_weights_and_keeps_stds(learning_seed: int) -> None:
    method = pb.VariationalDropout(std_init=0.1, threshold=0.0)
    model, data = smooth(learning_seed), tiny_data(seed=learning_seed)
    net = pb.fit(method, model, data, epochs=2, batch_size=16, progress=False, seed=learning_seed)
    assert isinstance(net.posterior, Sparse)
    mean, std = net.posterior.moments()
    kept = std > 0
    assert 0 < int(kept.sum()) < net.layout.size
    assert not mean[~kept].any()


def test_sparse_vd_refuses_a_prior_of_its_own() -> None:
    with pytest.raises(pb.UserError, match="log-uniform"):
        pb.VariationalDropout(prior_std=0.1)
