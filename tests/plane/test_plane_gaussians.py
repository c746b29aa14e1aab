"""Closed forms of the plane compared with scipy's matrix roots and with samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.stats import chi2 as chi_square
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError
from pocketbayes.plane import mahalanobis_squared, merge, w2_squared


def gaussians(n: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = scale * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    factors = scale * torch.randn(n, 2, 2, generator=generator, dtype=torch.float64)
    return means, factors @ factors.mT + 1e-3 * scale**2 * torch.eye(2, dtype=torch.float64)


def w2_by_scipy(m1: Tensor, S1: Tensor, m2: Tensor, S2: Tensor) -> float:
    root = np.real(sqrtm(S1.numpy()))
    cross = np.real(sqrtm(root @ S2.numpy() @ root))
    return float((m1 - m2).square().sum() + np.trace(S1.numpy() + S2.numpy() - 2 * cross))


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-8])
def test_w2_equals_the_matrix_root_formula(scale: float) -> None:
    m1, S1 = gaussians(20, 1, scale)
    m2, S2 = gaussians(20, 2, scale)
    expected = torch.tensor([w2_by_scipy(*pair) for pair in zip(m1, S1, m2, S2)], dtype=torch.float64)
    torch.testing.assert_close(w2_squared(m1, S1, m2, S2) / scale**2, expected / scale**2, rtol=1e-6, atol=1e-9)


def test_w2_in_one_dimension_is_mean_and_std_distance() -> None:
    stds = torch.tensor([1e-8, 3e-8], dtype=torch.float64)
    covs = torch.diag_embed(torch.stack((stds.square(), torch.full((2,), 1e-20, dtype=torch.float64)), 1))
    zero = torch.zeros(2, dtype=torch.float64)
    assert float(w2_squared(zero, covs[0], zero, covs[1])) == pytest.approx(4e-16, rel=1e-6)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_w2_is_a_squared_metric(seed: int) -> None:
    means, covs = gaussians(3, seed)
    distance = w2_squared(means[:, None], covs[:, None], means, covs)
    assert torch.allclose(distance, distance.mT, rtol=1e-9, atol=1e-12)
    assert bool((distance.diagonal() < 1e-12).all())
    root = distance.sqrt()
    assert float(root[0, 2]) <= float(root[0, 1] + root[1, 2]) + 1e-7


def test_w2_batches_and_keeps_the_dtype() -> None:
    means, covs = gaussians(6)
    pairwise = w2_squared(means[:, None].float(), covs[:, None].float(), means.float(), covs.float())
    assert pairwise.shape == (6, 6)
    assert pairwise.dtype == torch.float32
    assert float(pairwise[2, 4]) == pytest.approx(w2_by_scipy(means[2], covs[2], means[4], covs[4]), rel=1e-4)


def test_merge_by_moments_keeps_the_clouds_moments() -> None:
    means, covs = gaussians(2, 3)
    counts = (60_000, 20_000)
    torch.manual_seed(1)
    clouds = [
        m + torch.randn(n, 2, dtype=torch.float64) @ torch.linalg.cholesky(S).mT for m, S, n in zip(means, covs, counts)
    ]
    both = torch.cat(clouds)
    # With each part's own moments the union's are exact, not only within sampling error.
    own = [(c.mean(0), torch.cov(c.mT, correction=0)) for c in clouds]
    mean, cov, count = merge(*own[0], counts[0], *own[1], counts[1])
    torch.testing.assert_close(mean, both.mean(0))
    torch.testing.assert_close(cov, torch.cov(both.mT, correction=0))
    assert float(count) == 80_000


def test_barycenter_solves_its_fixed_point_equation() -> None:
    m1, S1 = gaussians(10, 4)
    m2, S2 = gaussians(10, 5)
    n1, n2 = torch.full((10,), 3.0), torch.arange(1.0, 11.0)
    mean, cov, _ = merge(m1, S1, n1, m2, S2, n2, how="barycenter")
    for i in range(10):
        w1 = float(n1[i] / (n1[i] + n2[i]))
        root = np.real(sqrtm(cov[i].numpy()))
        expected = sum(w * np.real(sqrtm(root @ S.numpy() @ root)) for w, S in ((w1, S1[i]), (1 - w1, S2[i])))
        np.testing.assert_allclose(cov[i].numpy(), expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(mean[i], w1 * m1[i] + (1 - w1) * m2[i])


def test_barycenter_lies_on_the_geodesic() -> None:
    m1, S1 = gaussians(5, 6)
    m2, S2 = gaussians(5, 7)
    mean, cov, _ = merge(m1, S1, 3, m2, S2, 1, how="barycenter")
    whole = w2_squared(m1, S1, m2, S2).sqrt()
    torch.testing.assert_close(w2_squared(m1, S1, mean, cov).sqrt(), whole / 4, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(w2_squared(mean, cov, m2, S2).sqrt(), 3 * whole / 4, rtol=1e-5, atol=1e-8)


def test_barycenter_printed_formula_is_that_of_the_paper() -> None:
    m1, S1 = gaussians(5, 8)
    m2, S2 = gaussians(5, 9)
    mean, cov, _ = merge(m1, S1, 7, m2, S2, 1, how="paper")
    torch.testing.assert_close(mean, (m1 + m2) / 2)
    for i in range(5):
        root = np.real(sqrtm(S1[i].numpy()))
        gap = (m1[i] - m2[i]).numpy()
        cross = np.real(sqrtm(root @ S2[i].numpy() @ root))
        expected = (S1[i] + S2[i]).numpy() / 2 + np.outer(gap, gap) / 8 + cross / 2
        np.testing.assert_allclose(cov[i].numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("how", "factor"), [("moments", 1.0), ("barycenter", 1.0), ("paper", 1.5)])
@pytest.mark.parametrize("std", [1.0, 1e-8])
def test_barycenter_printed_formula_inflates_equal_gaussians(how: str, factor: float, std: float) -> None:
    means, covs = gaussians(4, 10, std)
    mean, cov, _ = merge(means, covs, 5, means, covs, 2, how=how)  # type: ignore[arg-type]
    torch.testing.assert_close(mean, means)
    torch.testing.assert_close(cov / std**2, factor * covs / std**2)


@pytest.mark.parametrize("how", ["moments", "barycenter", "paper"])
def test_barycenter_covariances_are_positive_definite(how: str) -> None:
    m1, S1 = gaussians(50, 11, 1e-8)
    m2, S2 = gaussians(50, 12, 1.0)
    _, cov, _ = merge(m1, S1, 1, m2, S2, 1, how=how)  # type: ignore[arg-type]
    assert torch.equal(cov, cov.mT)
    assert bool((torch.linalg.eigvalsh(cov) > 0).all())


def test_barycenter_names_an_unknown_rule() -> None:
    means, covs = gaussians(2)
    with pytest.raises(UnknownNameError, match="did you mean 'moments'"):
        merge(means[0], covs[0], 1, means[1], covs[1], 1, how="moment")  # type: ignore[arg-type]


def test_mahalanobis_agrees_with_a_linear_solve() -> None:
    means, covs = gaussians(7, 13, 1e-6)
    points, _ = gaussians(11, 14, 1e-6)
    distance = mahalanobis_squared(points, means, covs)
    gap = points[:, None] - means
    expected = (gap * torch.linalg.solve(covs, gap[..., None])[..., 0]).sum(-1)
    torch.testing.assert_close(distance, expected)
    candidates = torch.randint(7, (11, 3))
    torch.testing.assert_close(mahalanobis_squared(points, means, covs, candidates), expected.gather(1, candidates))


@pytest.mark.parametrize("std", [1.0, 1e-8])
def test_mahalanobis_ellipse_excludes_five_percent(std: float) -> None:
    _, covs = gaussians(1, 15, std)
    n = 100_000
    points = torch.randn(n, 2, dtype=torch.float64) @ torch.linalg.cholesky(covs[0]).mT
    outside = (mahalanobis_squared(points, torch.zeros(1, 2, dtype=torch.float64), covs) > 5.991).double().mean()
    expected = float(chi_square.sf(5.991, 2))
    assert abs(float(outside) - expected) < 4 * (expected * (1 - expected) / n) ** 0.5
