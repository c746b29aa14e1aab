"""Dissolving and merging Gaussians, and the mapping of indices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError
from pocketbayes.plane import PlaneMixture, dissolve, merge, merge_all, w2_squared


def row(centres: list[float], std: float = 0.1) -> PlaneMixture:
    means = torch.tensor([[c, 0.0] for c in centres], dtype=torch.float64)
    covs = (std**2 * torch.eye(2, dtype=torch.float64)).repeat(len(centres), 1, 1)
    return PlaneMixture(means, covs, torch.full((len(centres),), 1 / len(centres), dtype=torch.float64))


def scattered(k: int, seed: int = 0) -> tuple[PlaneMixture, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = torch.rand(k, 2, generator=generator, dtype=torch.float64)
    covs = torch.diag_embed(1e-4 * torch.rand(k, 2, generator=generator, dtype=torch.float64) + 1e-5)
    counts = torch.randint(30, 300, (k,), generator=generator)
    return PlaneMixture(means, covs, counts / counts.sum()), counts


def test_merging_dissolves_small_clusters_and_renumbers() -> None:
    mixture, mapping = dissolve(row([0.0, 1.0, 2.0, 3.0]), torch.tensor([40, 29, 30, 0]), 30)
    assert mapping.tolist() == [0, -1, 1, -1]
    assert mixture.means[:, 0].tolist() == [0.0, 2.0]
    assert float(mixture.weights.sum()) == pytest.approx(1)


def test_merging_may_dissolve_all_clusters() -> None:
    mixture, mapping = dissolve(row([0.0, 1.0]), torch.tensor([1, 2]), 30)
    assert len(mixture) == 0
    assert mapping.tolist() == [-1, -1]


def test_merging_merges_a_close_pair() -> None:
    mixture = row([0.0, 0.01, 5.0])
    merged, counts, mapping = merge_all(mixture, torch.tensor([30, 10, 50]), tau_d=1e-3, tau_v=1.0)
    (m1, m2, _), (S1, S2, _) = mixture.means, mixture.covs
    expected = merge(m1, S1, 30, m2, S2, 10)
    assert mapping.tolist() == [0, 0, 1]
    assert counts.tolist() == [40, 50]
    torch.testing.assert_close(merged.means[0], expected[0])
    torch.testing.assert_close(merged.covs[0], expected[1])
    torch.testing.assert_close(merged.weights, torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))


@pytest.mark.parametrize("how", ["moments", "barycenter", "paper"])
def test_merging_leaves_no_pair_that_qualifies(how: str) -> None:
    mixture, counts = scattered(300)
    merged, totals, mapping = merge_all(mixture, counts, tau_d=2e-3, tau_v=1.0, how=how)  # type: ignore[arg-type]
    assert 1 < len(merged) < 300
    left = w2_squared(merged.means[:, None], merged.covs[:, None], merged.means, merged.covs)
    left.fill_diagonal_(1.0)
    assert float(left.min()) >= 2e-3
    assert torch.equal(torch.bincount(mapping, counts.double()).long(), totals)
    assert sorted(set(mapping.tolist())) == list(range(len(merged)))


def test_merge_all_keeps_the_clouds_moments() -> None:
    mixture, counts = scattered(200)
    merged, totals, _ = merge_all(mixture, counts, tau_d=5e-3, tau_v=1.0)
    for before, after in zip(moments(mixture, counts), moments(merged, totals)):
        torch.testing.assert_close(after, before)


def moments(mixture: PlaneMixture, counts: Tensor) -> tuple[Tensor, Tensor]:
    share = (counts / counts.sum()).double()
    centre = (share[:, None] * mixture.means).sum(0)
    gap = mixture.means - centre
    return centre, (share[:, None, None] * (mixture.covs + gap[:, :, None] * gap[:, None])).sum(0)


def test_merge_all_obeys_gradient_and_variance() -> None:
    mixture, counts = row([0.0, 0.01]), torch.tensor([30, 30])
    gradients = torch.tensor([0.30, 0.31], dtype=torch.float64)

    def left(**limits: object) -> int:
        return len(merge_all(mixture, counts, gradients, tau_d=1e-3, **limits)[0])  # type: ignore[arg-type]

    assert left(tau_g=0.2, tau_v=1.0, reading="value") == 2
    assert left(tau_g=0.4, tau_v=1.0, reading="value") == 1
    assert left(tau_g=0.02, tau_v=1.0, reading="difference") == 1
    assert left(tau_g=0.005, tau_v=1.0, reading="difference") == 2
    # Each has a variance of 0.01 + 0.01.
    assert left(tau_g=1.0, tau_v=0.019, reading="value") == 2
    assert left(tau_g=1.0, tau_v=0.021, reading="value") == 1
    assert left(tau_g=1.0, tau_v=1e-6, reading="difference") == 1


def test_merging_averages_gradients_by_count() -> None:
    mixture, counts = row([0.0, 0.01, 0.02]), torch.tensor([10, 30, 40])
    gradients = torch.tensor([0.5, 0.1, 0.1], dtype=torch.float64)
    # 0.5 alone is above the limit, so the other two merge, and their mean of 0.1 stays below it.
    merged, totals, mapping = merge_all(mixture, counts, gradients, tau_d=1.0, tau_g=0.2, tau_v=1.0)
    assert (len(merged), totals.tolist(), mapping.tolist()) == (2, [10, 70], [0, 1, 1])


def test_merging_default_distance_scales_with_the_cloud() -> None:
    mixture, counts = scattered(2000)
    small = PlaneMixture(mixture.means * 1e-6, mixture.covs * 1e-12, mixture.weights)
    one, other = (merge_all(m, counts, tau_v=1.0)[2] for m in (mixture, small))
    assert torch.equal(one, other)
    assert 1 < int(one.max()) + 1 < 2000


def test_merging_unites_equal_gaussians() -> None:
    merged, counts, mapping = merge_all(row([0.3] * 50), torch.full((50,), 30), tau_d=1e-6, tau_v=1.0)
    assert (len(merged), counts.tolist(), int(mapping.max())) == (1, [1500], 0)


def test_merging_names_an_unknown_rule() -> None:
    with pytest.raises(UnknownNameError, match="reading"):
        merge_all(row([0.0, 1.0]), torch.tensor([30, 30]), reading="values")  # type: ignore[arg-type]
