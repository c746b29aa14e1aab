"""The histogram: exact moments, cells, and merging of parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.plane import Grid, fit_mixture, make_grid, make_histogram


def cloud(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mean = 0.05 * torch.randn(n, generator=generator) * torch.randn(n, generator=generator).exp()
    std = torch.where(torch.rand(n, generator=generator) < 0.3, 1e-8, 1e-3)
    return torch.stack((mean, std * torch.exp(0.3 * torch.randn(n, generator=generator))), 1)


def moments(grid: Grid, points: Tensor) -> tuple[Tensor, Tensor]:
    weight, mean, cov = make_histogram(points, grid).cells()
    share = weight[:, None] / weight.sum()
    centre = (share * mean).sum(0)
    gap = mean - centre
    second = torch.stack((gap[:, 0] ** 2, gap[:, 0] * gap[:, 1], gap[:, 1] ** 2), 1)
    return centre, (share * (second + cov)).sum(0)


@pytest.mark.parametrize("cells", [10, 1000])
def test_histogram_keeps_mean_and_covariance(cells: int) -> None:
    points = cloud(20_000)
    centre, cov = moments(make_grid(points, cells), points)
    exact = torch.cov(points.double().mT, correction=0)
    torch.testing.assert_close(centre, points.double().mean(0), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(cov, torch.stack((exact[0, 0], exact[0, 1], exact[1, 1])), rtol=1e-9, atol=1e-18)


def test_histogram_counts_every_point_once() -> None:
    points = cloud(50_000)
    weight, _, _ = make_histogram(points, make_grid(points, 2000)).cells()
    assert float(weight.sum()) == 50_000
    assert 2000 <= len(weight) <= 3000


def test_histogram_gives_points_own_cells_with_enough_cells() -> None:
    points = cloud(500)
    weight, mean, cov = make_histogram(points, make_grid(points, 500)).cells()
    assert len(weight) == 500
    assert float(cov.abs().max()) < 1e-20
    order, expected = mean[:, 0].argsort(), points.double()[points[:, 0].argsort()]
    torch.testing.assert_close(mean[order], expected, rtol=1e-12, atol=0)


def test_histogram_resolves_stds_of_1e_8_beside_1e_3() -> None:
    points = cloud(50_000)
    _, mean, _ = make_histogram(points, make_grid(points, 4000)).cells()
    tiny = mean[mean[:, 1] < 1e-6, 1]
    assert len(tiny) > 400
    # The log-normal shape of the tiny stds is still there, not only their mean.
    assert float(tiny.log().std()) > 0.2


def test_histogram_parts_add_up_to_the_whole() -> None:
    points = cloud(30_000)
    grid = make_grid(points[:5000], 3000)
    whole = make_histogram(points, grid)
    parts = make_histogram(points[:12_345], grid) + make_histogram(points[12_345:], grid)
    torch.testing.assert_close(parts.sums, whole.sums, rtol=1e-12, atol=1e-24)
    assert torch.equal(parts.sums[:, 0], whole.sums[:, 0])


def test_histogram_merged_fit_equals_the_fit_to_all_points() -> None:
    points = cloud(30_000)
    grid = make_grid(points, 3000)
    whole = fit_mixture(make_histogram(points, grid), 8)
    merged = fit_mixture(make_histogram(points[::2], grid) + make_histogram(points[1::2], grid), 8)
    torch.testing.assert_close(merged.means, whole.means, rtol=1e-6, atol=1e-9)


def test_histogram_weights_count_like_copies() -> None:
    points = cloud(2000)
    grid = make_grid(points, 300)
    copies = torch.arange(2000) % 3
    weighted = make_histogram(points, grid, copies.float())
    torch.testing.assert_close(weighted.sums, make_histogram(points.repeat_interleave(copies, 0), grid).sums)


def test_histogram_refuses_different_grids() -> None:
    points = cloud(1000)
    one, other = make_grid(points, 100), make_grid(points + 1, 100)
    with pytest.raises(UserError, match="different grids"):
        make_histogram(points, one) + make_histogram(points, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histogram_levels_grow_far_outside_the_sample(dtype: torch.dtype) -> None:
    points = cloud(5000).to(dtype)
    grid = make_grid(points, 100)
    far = torch.tensor([-1e30, -1.0, -0.0, 0.0, 1e-30, 1.0, 1e30], dtype=dtype)
    values = torch.cat((points[:, 0], far)).sort().values
    levels = grid.curve.x.level(values)
    assert bool((levels.diff() >= 0).all())
    assert (int(levels[0]), int(levels[-1])) == (0, 65535)


def test_histogram_keeps_points_outside_the_grid() -> None:
    points = cloud(5000)
    grid = make_grid(points, 100)
    far = torch.tensor([[1e6, 1e6], [-1e6, 0.0]])
    weight, mean, _ = make_histogram(torch.cat((points, far)), grid).cells()
    assert float(weight.sum()) == 5002
    expected = torch.cat((points, far)).double().mean(0)
    torch.testing.assert_close((weight[:, None] * mean).sum(0) / 5002, expected, rtol=1e-9, atol=1e-9)


def test_histogram_puts_equal_points_in_one_cell() -> None:
    points = torch.full((100, 2), 0.1)
    weight, mean, cov = make_histogram(points, make_grid(points, 50)).cells()
    assert weight.tolist() == [100.0]
    torch.testing.assert_close(mean, points[:1].double())
    assert float(cov.abs().max()) == 0
