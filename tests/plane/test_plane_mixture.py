"""The mixture fit: recovery of a known mixture, comparison with scikit-learn, and thread independence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.plane import PlaneMixture, fit_mixture, kmeans
from pocketbayes.plane import centres as centres_module
from pocketbayes.plane.blocks import Blocks, bounds
from pocketbayes.plane.gaussians import whitened_norm_squared
from pocketbayes.plane.search import best


def layers(n: int, seed: int = 0) -> Tensor:
    """Return points like a network's: layers of different scale, with log-normal stds."""
    generator = torch.Generator().manual_seed(seed)
    scale = 0.005 * 1.6 ** torch.randint(8, (n,), generator=generator)
    mean = scale * torch.randn(n, generator=generator)
    return torch.stack((mean, 0.1 * scale * torch.exp(0.4 * torch.randn(n, generator=generator))), 1)


def known() -> PlaneMixture:
    means = torch.tensor([[-0.05, 1e-3], [0.0, 3e-3], [0.06, 2e-3]], dtype=torch.float64)
    std = torch.tensor([[0.005, 1e-4], [0.01, 4e-4], [0.004, 2e-4]], dtype=torch.float64)
    covs = torch.diag_embed(std.square())
    covs[2, 0, 1] = covs[2, 1, 0] = 0.6 * 0.004 * 2e-4
    return PlaneMixture(means, covs, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))


def draw(mixture: PlaneMixture, n: int) -> Tensor:
    which = torch.multinomial(mixture.weights, n, True)
    noise = torch.randn(n, 2, 1, dtype=torch.float64)
    return mixture.means[which] + (torch.linalg.cholesky(mixture.covs)[which] @ noise)[..., 0]


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_mixture_fit_recovers_a_known_mixture(scale: float) -> None:
    truth = known()
    n = 60_000
    points = draw(truth, n) * scale
    found = fit_mixture(points, 3)
    order = found.means[:, 0].argsort()
    spread = torch.linalg.eigvalsh(truth.covs)[:, -1:].sqrt()
    counts = (n * truth.weights)[:, None]
    assert bool(((found.means[order] / scale - truth.means).abs() < 5 * spread / counts.sqrt()).all())
    std = truth.covs.diagonal(dim1=1, dim2=2).sqrt() * scale
    unit = std[:, :, None] * std[:, None, :]
    torch.testing.assert_close(found.covs[order] / unit, truth.covs * scale**2 / unit, rtol=0, atol=0.05)
    torch.testing.assert_close(found.weights[order], truth.weights, rtol=0, atol=0.01)


def test_mixture_density_and_assignment_agree_with_torch() -> None:
    truth = known()
    points = draw(truth, 500)
    parts = torch.distributions.MultivariateNormal(truth.means, truth.covs)
    joint = parts.log_prob(points[:, None]) + truth.weights.log()
    torch.testing.assert_close(truth.log_density(points), joint.logsumexp(1))
    assert torch.equal(truth.assign(points), joint.argmax(1))


def test_mixture_log_likelihood_is_that_of_the_points() -> None:
    points = layers(10_000)
    mixture = fit_mixture(points, 20, bins=10_000)
    assert mixture.log_likelihood == pytest.approx(float(mixture.log_density(points).mean()), abs=2e-3)


def test_mixture_em_improves_on_the_k_means_start() -> None:
    points = layers(10_000)
    start, fitted = fit_mixture(points, 20, bins=4000, iterations=0), fit_mixture(points, 20, bins=4000)
    assert float(fitted.log_density(points).mean()) > float(start.log_density(points).mean()) + 0.05


def test_mixture_fit_is_as_good_as_scikit_learn() -> None:
    from sklearn.cluster import KMeans
    from sklearn.mixture import GaussianMixture

    points, k = layers(8000).double(), 12
    theirs = GaussianMixture(k, reg_covar=1e-12, random_state=0).fit(points.numpy()).score(points.numpy())
    for bins in (2000, 8000):
        ours = float(fit_mixture(points, k, bins=bins).log_density(points).mean())
        assert ours > theirs - 0.005 * abs(theirs)
    inertia = KMeans(k, n_init=1, random_state=0).fit(points.numpy()).inertia_
    found = kmeans(torch.ones(len(points), dtype=torch.float64), points, k)
    cost = torch.cdist(points, found).amin(1).square().sum()
    assert float(cost) < 1.02 * inertia


def test_mixture_weighted_points_count_like_copies() -> None:
    points = layers(3000)
    copies = torch.arange(3000) % 3
    repeated = points.repeat_interleave(copies, 0)
    weighted, copied = fit_mixture(points, 4, weights=copies.float()), fit_mixture(repeated, 4)
    likelihood = [float(mixture.log_density(repeated).mean()) for mixture in (weighted, copied)]
    assert likelihood[0] == pytest.approx(likelihood[1], abs=0.005)
    torch.testing.assert_close((weighted.weights[:, None] * weighted.means).sum(0), repeated.double().mean(0))


def test_mixture_fit_is_bitwise_equal_with_threads() -> None:
    points = layers(40_000)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            mixture = fit_mixture(points, 120, bins=5000, iterations=5)
            found.append((mixture, mixture.assign(points)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for mixture, index in found[1:]:
        assert torch.equal(mixture.means, found[0][0].means)
        assert torch.equal(mixture.covs, found[0][0].covs)
        assert torch.equal(mixture.weights, found[0][0].weights)
        assert torch.equal(index, found[0][1])


def test_mixture_fit_depends_on_the_seed_alone() -> None:
    points = layers(5000)
    one, same, other = (fit_mixture(points, 30, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.means, same.means)
    assert not torch.equal(one.means, other.means)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("weighted", [True, False])
def test_mixture_search_finds_the_best_of_all(k: int, weighted: bool) -> None:
    points = layers(40_000)
    mixture = fit_mixture(points, 200, bins=5000, iterations=3)
    components = mixture.components(weighted)
    found = best(points, components, k)
    rows = torch.randperm(len(points))[:2000]
    # The farthest points are the hard ones.
    rows = torch.cat((rows, points[:, 1].topk(500).indices))
    gap = points[rows, None].double() - components.mean
    score = components.constant - whitened_norm_squared(gap, components.whitener) / 2
    assert torch.equal(found[rows], score.topk(k, 1).indices)


def test_mixture_bounds_hold_everywhere_in_a_box() -> None:
    mixture = known()
    components = mixture.components()
    low = torch.tensor([[-0.06, 5e-4], [0.05, 1e-3]], dtype=torch.float64)
    high = low + torch.tensor([[0.02, 2e-3], [1e-3, 1e-5]], dtype=torch.float64)
    highest, lowest = bounds(low, high, components)
    inside = low + torch.rand(2000, 2, 2, dtype=torch.float64) * (high - low)
    parts = torch.distributions.MultivariateNormal(mixture.means, mixture.covs)
    score = parts.log_prob(inside[..., None, :]) + mixture.weights.log()
    assert bool((score <= highest + 1e-9).all())
    assert bool((score >= lowest - 1e-9).all())
    assert bool((highest >= lowest).all())


def test_mixture_sweep_is_the_textbook_em_step() -> None:
    mixture = known()
    points = draw(mixture, 300)
    blocks = Blocks(torch.ones(300, dtype=torch.float64), points, torch.zeros(300, 3, dtype=torch.float64), size=16)
    components = mixture.components()
    sums, likelihood = blocks.sweep(components, blocks.candidates(components))
    joint = torch.distributions.MultivariateNormal(mixture.means, mixture.covs).log_prob(points[:, None])
    share = (joint + mixture.weights.log()).softmax(1)
    gap = points[:, None] - mixture.means
    expected = torch.stack(
        (torch.ones(300, 3), gap[..., 0], gap[..., 1], gap[..., 0] ** 2, gap[..., 0] * gap[..., 1], gap[..., 1] ** 2), 2
    )
    terms = share[..., None] * expected
    error = (sums[:, :6] - terms.sum(0)).abs()  # terms of both signs may cancel in the sum, but not in its error
    assert bool((error <= 1e-6 * terms.abs().sum(0)).all())
    assert likelihood == pytest.approx(float(mixture.log_density(points).mean()), rel=1e-9)


def test_mixture_distances_without_a_tree_are_equal() -> None:
    points, centres = layers(500).double(), layers(40, seed=1).double()
    by_tree = centres_module.nearest(points, centres, 3)
    by_matrix = centres_module.nearest_by_matrix(points, centres, 3)
    torch.testing.assert_close(by_tree[0], by_matrix[0])
    assert torch.equal(by_tree[1], by_matrix[1])


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(torch.full((50, 2), 0.1), id="equal"),
        pytest.param(torch.zeros(50, 2), id="zero"),
        pytest.param(torch.stack((torch.linspace(-1, 1, 400), torch.full((400,), 1e-8)), 1), id="a line"),
        pytest.param(torch.stack((torch.linspace(-1, 1, 400), torch.linspace(-1, 1, 400).abs()), 1), id="a kink"),
        pytest.param(torch.stack((torch.linspace(-1, 1, 400), 1e-8 * torch.linspace(1, 2, 400)), 1), id="1e-8"),
        pytest.param(torch.tan(torch.linspace(-1.5707, 1.5707, 800)).reshape(400, 2), id="heavy tails"),
    ],
)
@pytest.mark.parametrize("k", [1, 7, 300])
def test_mixture_covariances_are_positive_definite(points: Tensor, k: int) -> None:
    mixture = fit_mixture(points, k)
    assert 1 <= len(mixture) <= k
    assert bool(torch.isfinite(mixture.means).all())
    assert int(torch.linalg.cholesky_ex(mixture.covs).info.abs().max()) == 0
    assert bool(torch.isfinite(mixture.log_density(points)).all())
    assert float(mixture.weights.sum()) == pytest.approx(1)
    assert int(mixture.assign(points).max()) < len(mixture)


def test_mixture_tiny_stds_keep_their_scale() -> None:
    n = 20_000
    scale = torch.where(torch.arange(n) % 2 == 0, 1e-8, 1e-2)
    points = torch.stack((0.05 * torch.randn(n), scale * (1 + 0.1 * torch.randn(n))), 1)
    mixture = fit_mixture(points, 40, bins=5000)
    tiny = mixture.means[:, 1] < 1e-6
    assert int(tiny.sum()) >= 10
    std = mixture.covs[tiny, 1, 1].sqrt()
    torch.testing.assert_close(std, torch.full_like(std, 1e-9), rtol=0.5, atol=0)


def test_mixture_keeps_every_gaussian_in_heavy_tails() -> None:
    tail = torch.randn(30_000).exp()
    points = torch.stack((0.02 * tail * torch.randn(30_000), 1e-3 * torch.randn(30_000).exp()), 1)
    assert len(fit_mixture(points, 500, bins=10_000)) == 500


def test_mixture_fit_names_mistakes() -> None:
    with pytest.raises(UserError, match="at least one Gaussian"):
        fit_mixture(torch.rand(10, 2), 0)
    with pytest.raises(UserError, match=r"\(n, 2\)"):
        fit_mixture(torch.rand(10), 2)
    with pytest.raises(UserError, match="finite"):
        fit_mixture(torch.full((10, 2), float("nan")), 2)
