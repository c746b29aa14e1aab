"""Stage 2: every weight is assigned, every step can be disabled, and edge cases work."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.plane import (
    Plane,
    PlaneMixture,
    PlaneSettings,
    blend,
    ellipse_points,
    entropy_bits,
    fit_mixture,
    mahalanobis_squared,
    outliers,
    survey,
)

SMALL = PlaneSettings(k=30, n_min=10, tau_w=0.2, bins=3000, iterations=10)


def weights(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = 0.01 * 2.0 ** torch.randint(4, (n,), generator=generator)
    mean = scale * torch.randn(n, generator=generator)
    std = 0.05 * scale * torch.exp(0.3 * torch.randn(n, generator=generator))
    return mean, std, 1e-3 * torch.randn(n, generator=generator)


def check(plane: Plane, n: int) -> None:
    """Check the invariants of every survey."""
    k = len(plane.mixture)
    causes = torch.cat((plane.value_outliers, plane.gradient_outliers, plane.small_outliers))
    assert torch.equal(causes.sort().values, plane.outliers)
    assert plane.index.shape == (n,)
    assert int(plane.index.max()) < max(k, 1)
    assert torch.equal(torch.bincount(plane.index[plane.index >= 0], minlength=k), plane.counts)
    assert bool((plane.index[plane.ellipses] >= 0).all())
    assert plane.k_fitted >= plane.k_before_merging >= k
    assert plane.index_bits == pytest.approx(entropy_bits(plane.counts))
    assert 0 <= plane.index_bits <= math.log2(max(k, 1)) + 1e-9
    assert int(torch.linalg.cholesky_ex(plane.mixture.covs).info.abs().sum()) == 0
    assert bool(torch.isfinite(plane.mixture.means).all())
    assert len(plane.blend_index) == len(plane.blend_alpha) == len(plane.ellipses)
    torch.testing.assert_close(plane.blend_alpha.sum(1), torch.ones(len(plane.ellipses), dtype=torch.float64))


def test_survey_counts_outliers_by_cause() -> None:
    mean = torch.tensor([0.1, -0.3, 0.2, 0.25])
    gradient = torch.tensor([0.0, 5.0, -9.0, 1.0])
    masks = outliers(mean, gradient, tau_w=0.2, gradient_fraction=0.25)
    assert masks["value"].tolist() == [False, True, False, True]
    assert masks["gradient"].tolist() == [False, False, True, False]


def test_survey_gradient_outliers_have_the_largest_gradients() -> None:
    mean, _, gradient = weights(10_000)
    mask = outliers(mean, gradient, None, 0.01)["gradient"]
    assert int(mask.sum()) == 100
    assert float(gradient.abs()[mask].min()) > float(gradient.abs()[~mask].max())
    assert not bool(outliers(mean, torch.zeros(10_000), None, 0.01)["gradient"].any())


def test_survey_ellipse_outliers_lie_outside_every_ellipse() -> None:
    mean, std, _ = weights(20_000)
    points = torch.stack((mean, std), 1)
    mixture = fit_mixture(points, 30, bins=3000, iterations=5)
    distance = mahalanobis_squared(points.double(), mixture.means, mixture.covs)
    index = mixture.assign(points)
    outside_all = (distance > 5.991).all(1).nonzero()[:, 0]
    outside_own = (distance.gather(1, index[:, None])[:, 0] > 5.991).nonzero()[:, 0]
    assert 0 < len(outside_all) < len(outside_own)
    assert torch.equal(ellipse_points(points, mixture), outside_all)
    assert torch.equal(ellipse_points(points, mixture, mode="own"), outside_own)
    passed = index.clone()
    passed[outside_all[:2]] = -1
    assert torch.equal(ellipse_points(points, mixture, index=passed), outside_all[2:])


def test_survey_ellipses_exclude_five_percent() -> None:
    centres = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    covs = 1e-4 * torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    n = 40_000
    points = centres[torch.arange(n) % 2] + 1e-2 * torch.randn(n, 2, dtype=torch.float64)
    mixture = PlaneMixture(centres, covs, torch.full((2,), 0.5, dtype=torch.float64))
    for mode in ("own", "nearest"):
        share = len(ellipse_points(points, mixture, mode=mode)) / n  # type: ignore[arg-type]
        assert abs(share - 0.05) < 4 * (0.05 * 0.95 / n) ** 0.5


def test_blending_shares_are_densities_of_the_nearest() -> None:
    mean, std, _ = weights(5000)
    points = torch.stack((mean, std), 1).double()
    mixture = fit_mixture(points, 20, bins=2000, iterations=5)
    index, alpha = blend(points[:200], mixture, 5)
    distance = mahalanobis_squared(points[:200], mixture.means, mixture.covs)
    assert torch.equal(index, distance.topk(5, largest=False).indices)
    density = torch.distributions.MultivariateNormal(mixture.means, mixture.covs).log_prob(points[:200, None]).exp()
    few = density.gather(1, index)
    torch.testing.assert_close(alpha, few / few.sum(1, keepdim=True))
    two, share = blend(points[:200], mixture, 5, keep=2)
    best = few.topk(2, 1)
    assert torch.equal(two, index.gather(1, best.indices))
    torch.testing.assert_close(share, best.values / best.values.sum(1, keepdim=True))


def test_blending_shares_stay_finite_far_away() -> None:
    mixture = fit_mixture(1e-8 * torch.randn(500, 2, dtype=torch.float64), 8)
    _, alpha = blend(torch.tensor([[1.0, 1.0], [-3.0, 1e-8]]), mixture)
    assert bool(torch.isfinite(alpha).all())
    torch.testing.assert_close(alpha.sum(1), torch.ones(2, dtype=torch.float64))


def test_survey_accounts_for_every_weight() -> None:
    mean, std, gradient = weights(30_000)
    plane = survey(mean, std, gradient, SMALL)
    check(plane, 30_000)
    masks = outliers(mean, gradient, 0.2, 0.01)
    assert torch.equal(plane.value_outliers, masks["value"].nonzero()[:, 0])
    assert torch.equal(plane.gradient_outliers, (masks["gradient"] & ~masks["value"]).nonzero()[:, 0])
    assert set(plane.timings) == {"outliers", "fit", "assign", "dissolve", "merge", "ellipses"}
    assert len(plane.ellipses) > 0


def test_survey_assigns_a_nearby_gaussian() -> None:
    mean, std, _ = weights(30_000)
    plane = survey(mean, std, None, dataclasses.replace(SMALL, k=200, n_min=0))
    shared = plane.index >= 0
    error = (plane.mixture.means[plane.index[shared], 0] - mean[shared]).square().mean()
    assert float(error) < 0.01 * float(mean[shared].square().mean())


@pytest.mark.parametrize(
    ("changes", "empty"),
    [
        ({"tau_w": None}, "value_outliers"),
        ({"gradient_fraction": 0.0}, "gradient_outliers"),
        ({"n_min": 0}, "small_outliers"),
        ({"ellipse": None}, "ellipses"),
    ],
)
def test_survey_steps_can_be_switched_off(changes: dict[str, object], empty: str) -> None:
    mean, std, gradient = weights(6000)
    settings = dataclasses.replace(SMALL, k=60, n_min=30)
    with_it = survey(mean, std, gradient, settings)
    without = survey(mean, std, gradient, dataclasses.replace(settings, **changes))
    assert len(getattr(with_it, empty)) > 0
    assert len(getattr(without, empty)) == 0
    check(without, 6000)


def test_survey_merging_can_be_switched_off() -> None:
    mean, std, _ = weights(20_000)
    settings = dataclasses.replace(SMALL, k=400, n_min=0, tau_d=1e-6)
    merged = survey(mean, std, None, settings)
    assert len(merged.mixture) < merged.k_before_merging
    without = survey(mean, std, None, dataclasses.replace(settings, merge=None))
    assert len(without.mixture) == without.k_before_merging
    check(without, 20_000)


def test_survey_chooses_k_by_bits() -> None:
    mean, std, _ = weights(20_000)
    plane = survey(mean, std, None, dataclasses.replace(SMALL, bits_per_weight=5.0, n_min=0, merge=None))
    assert 4.7 < plane.index_bits <= 5.0
    assert plane.k_fitted > 32


def test_survey_bic_finds_two_clusters() -> None:
    mean = torch.cat((0.01 * torch.randn(4000) - 0.1, 0.01 * torch.randn(4000) + 0.1))
    std = 1e-4 * torch.randn(8000) + 1e-2
    assert survey(mean, std, None, dataclasses.replace(SMALL, k="bic")).k_fitted == 2


def test_survey_is_equal_with_threads() -> None:
    mean, std, gradient = weights(30_000)
    before = torch.get_num_threads()
    planes = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            planes.append(survey(mean, std, gradient, dataclasses.replace(SMALL, k=150)))
    finally:
        torch.set_num_threads(before)
    one, two = planes
    for name in ("index", "counts", "ellipses", "blend_index", "blend_alpha", "small_outliers"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert torch.equal(one.mixture.means, two.mixture.means)
    assert torch.equal(one.mixture.covs, two.mixture.covs)


def test_survey_warns_where_all_clusters_are_too_small() -> None:
    mean, std, _ = weights(100)
    with pytest.warns(UserWarning, match="all weights are outliers"):
        plane = survey(mean, std, settings=PlaneSettings(k=40, n_min=30))
    check(plane, 100)
    assert len(plane.mixture) == 0
    assert len(plane.outliers) == 100


def test_survey_warns_where_all_weights_are_outliers_by_value() -> None:
    with pytest.warns(UserWarning, match="all 50 weights are outliers by value or gradient: raise tau_w"):
        plane = survey(torch.ones(50), torch.ones(50), settings=PlaneSettings(tau_w=0.2))
    check(plane, 50)
    assert len(plane.value_outliers) == 50


@pytest.mark.parametrize(("n", "k", "n_min"), [(1, 1, 3), (100, 10, 3), (10_000, 100, 10), (5_000_000, 2000, 30)])
def test_survey_settings_follow_the_number_of_weights(n: int, k: int, n_min: int) -> None:
    settings = PlaneSettings().for_cloud(torch.full((n,), 0.3))
    assert (settings.k, settings.n_min, settings.tau_w) == (k, n_min, pytest.approx(1.2))
    assert PlaneSettings(k=7, n_min=2, tau_w=None).for_cloud(torch.ones(n)) == PlaneSettings(k=7, n_min=2, tau_w=None)


@pytest.mark.parametrize("k", [2, 6000])
@pytest.mark.parametrize("case", ["equal", "tiny stds", "two scales", "no std", "cauchy"])
def test_survey_handles_edge_cases(k: int, case: str) -> None:
    mean, _, gradient = weights(7000)
    noise = torch.randn(7000)
    mean, std = {
        "equal": (torch.full((7000,), 0.1), torch.full((7000,), 1e-8)),
        "tiny stds": (mean, 1e-8 * (1 + 0.1 * noise).abs()),
        "two scales": (mean, torch.where(mean > 0, 1e-8, 1e-2) * noise.exp()),
        "no std": (mean, torch.zeros(7000)),
        "cauchy": (torch.empty(7000).cauchy_() * 0.01, (3 * noise - 8).exp()),
    }[case]
    plane = survey(mean, std, gradient, dataclasses.replace(SMALL, k=k, n_min=1, iterations=3))
    check(plane, 7000)
    assert len(plane.mixture) >= 1


def test_survey_takes_parameters_that_require_gradients() -> None:
    mean, std, _ = weights(500)
    check(survey(mean.requires_grad_(), std.requires_grad_(), None, dataclasses.replace(SMALL, k=3)), 500)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"k": "aic"}, "k='aic'"),
        ({"merge": "mean"}, "merge rule"),
        ({"ellipse": "any"}, "ellipse mode"),
        ({"gradient_fraction": 1.0}, "gradient_fraction"),
        ({"bits_per_weight": 0.0}, "bits_per_weight"),
        ({"reading": "both"}, "reading"),
    ],
)
def test_survey_names_wrong_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PlaneSettings(**changes)  # type: ignore[arg-type]


def test_survey_names_wrong_weights() -> None:
    with pytest.raises(UserError, match="one length"):
        survey(torch.zeros(3), torch.zeros(4))
    with pytest.raises(UserError, match="finite"):
        survey(torch.zeros(100), torch.full((100,), float("nan")))
