"""Ellipse points: weights that fit no Gaussian well and are blended from several."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.plane.chunks import fixed_order, ordered_map, slices
from pocketbayes.plane.gaussians import log_peak, mahalanobis_squared, whitened_norm_squared
from pocketbayes.plane.mixture import PlaneMixture
from pocketbayes.plane.search import best

EllipseMode = Literal["nearest", "own"]
MODES: tuple[str, ...] = ("nearest", "own")
CHUNK = 1 << 18


@fixed_order()
def ellipse_points(
    points: Tensor,
    mixture: PlaneMixture,
    chi2: float = 5.991,
    mode: EllipseMode = "nearest",
    index: Tensor | None = None,
) -> Tensor:
    """Return the points with `(x - m)^T S^(-1) (x - m) > chi2` for every Gaussian or for their own.

    A true Gaussian has 5 % of its points outside 5.991, so `own` returns about that many by construction.

    Args:
        points: (n, 2).
        mixture: K Gaussians.
        chi2: squared Mahalanobis distance of the ellipse.
        mode: `nearest` for all Gaussians, `own` for the point's own.
        index: the Gaussian of every point, -1 for points to skip; by default from `PlaneMixture.assign`.

    Returns:
        Positions, ascending, int64.
    """
    check_choice("ellipse mode", mode, MODES)
    if len(mixture) == 0 or len(points) == 0:
        return torch.empty(0, dtype=torch.int64, device=points.device)
    owner = mixture.assign(points) if index is None else index

    components = mixture.components(weighted=False)

    def outside(few: Tensor, own: Tensor) -> Tensor:
        nearest = components.take(own.clamp_min(0))
        return whitened_norm_squared(few.detach().to(torch.float64) - nearest.mean, nearest.whitener) > chi2

    def chunk(part: slice) -> Tensor:
        own = owner[part]
        return (outside(points[part], own) & (own >= 0)).nonzero()[:, 0] + int(part.start)

    rows = torch.cat(list(ordered_map(chunk, slices(len(points), CHUNK), points.device)))
    if mode == "nearest":
        few = points[rows]
        rows = rows[outside(few, best(few, components)[:, 0])]
    return rows


@fixed_order()
def blend(points: Tensor, mixture: PlaneMixture, k: int = 5, keep: int | None = None) -> tuple[Tensor, Tensor]:
    """Compute `alpha_j = N(x; j) / sum_i N(x; i)` over the `k` Gaussians nearest by Mahalanobis distance.

    Args:
        points: (p, 2).
        mixture: K Gaussians; all are used if there are fewer than `k`.
        k: number of Gaussians per point.
        keep: number of them to keep, the best by density (2 in the authors' code).

    Returns:
        Numbers of the Gaussians, (p, k) int64, and their shares, (p, k) float64; each row sums to 1.
    """
    index = best(points, mixture.components(weighted=False), k)
    few = points.detach().to(torch.float64)
    density = log_peak(mixture.covs)[index] - mahalanobis_squared(few, mixture.means, mixture.covs, index) / 2
    if keep is not None and keep < index.shape[1]:
        density, column = density.topk(keep, 1)
        index = index.gather(1, column)
    return index, density.softmax(1)
