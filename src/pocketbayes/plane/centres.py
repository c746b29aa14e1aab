"""K-means on weighted cells, the starting point of the mixture.

2 K seeds are drawn by squared distance (k-means++) in doubling batches; the cheapest pairs are united until K are left,
and Lloyd's iterations follow. Overseeding costs little and ends in better optima than seeding K directly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.plane.chunks import slices, workers

# Entries of the fallback's distance matrix: 128 MB.
DISTANCES = 1 << 24
OVERSEEDING = 2
# Largest share of the centres that is united in one round, so that costs stay valid while neighbours change.
UNITED_PER_ROUND = 0.1
TOLERANCE = 1e-3


def nearest(points: Tensor, centres: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
    """Return squared distances and positions of the `k` nearest centres, (n, k) each, by a k-d tree on a CPU.

    Args:
        points: (n, 2), float64.
        centres: (m, 2), float64, `m >= k`.
        k: how many.
    """
    if points.device.type == "cpu":
        from scipy.spatial import cKDTree

        distance, index = cKDTree(centres.numpy()).query(points.numpy(), k=[*range(1, k + 1)], workers=workers())
        return torch.from_numpy(distance).square(), torch.from_numpy(index)
    return nearest_by_matrix(points, centres, k)


def nearest_by_matrix(points: Tensor, centres: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Do the same as `nearest` from all distances, for devices without k-d trees."""
    pieces = [
        torch.cdist(points[part], centres, compute_mode="donot_use_mm_for_euclid_dist").topk(k, largest=False)
        for part in slices(len(points), max(1, DISTANCES // len(centres)))
    ]
    return torch.cat([piece.values for piece in pieces]).square(), torch.cat([piece.indices for piece in pieces])


def kmeans(weight: Tensor, points: Tensor, k: int, seed: int = 0, iterations: int = 20) -> Tensor:
    """Find centres that reduce `sum_i weight_i min_k |x_i - c_k|^2`.

    Args:
        weight: (m,), float64.
        points: (m, 2), float64.
        k: number of centres; fewer are returned if there are fewer distinct points.
        seed: of the draws.
        iterations: maximum of Lloyd's iterations.

    Returns:
        Centres, (at most k, 2), each the mean of the points nearest to it up to the last iteration's movement.
    """
    centres = _seed(weight, points, min(OVERSEEDING * k, len(points)), seed)
    while len(centres) > k:
        centres, counts, _ = _lloyd(weight, points, centres)
        centres = _unite(centres, counts, k)
    before = float("inf")
    for _ in range(iterations):
        centres, _, cost = _lloyd(weight, points, centres)
        if not cost < before * (1 - TOLERANCE):
            break
        before = cost
    return centres


def _lloyd(weight: Tensor, points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return means and counts of the points nearest to each non-empty centre, and the cost before the update."""
    distance, index = nearest(points, centres)
    index = index[:, 0]
    counts = torch.bincount(index, weight, len(centres))
    # Relative to the old centre, so that stds of 1e-8 are not lost to rounding.
    gap = points - centres[index]
    moved = torch.stack([torch.bincount(index, weight * gap[:, axis], len(centres)) for axis in (0, 1)], 1)
    held = counts > 0
    return centres[held] + moved[held] / counts[held, None], counts[held], float((weight * distance[:, 0]).sum())


def _seed(weight: Tensor, points: Tensor, k: int, seed: int) -> Tensor:
    """Draw at most `k` distinct points in batches, systematically in proportion to the cost so far."""
    generator = torch.Generator().manual_seed(seed)
    heaviest = int(weight.argmax())
    chosen = points[heaviest : heaviest + 1]
    while len(chosen) < k:
        distance, _ = nearest(points, chosen)
        cost = (weight * distance[:, 0]).cumsum(0)
        if not float(cost[-1]) > 0:
            break
        batch = min(k - len(chosen), len(chosen))
        start = torch.rand(1, generator=generator, dtype=torch.float64).to(points.device)
        at = (torch.arange(batch, device=points.device) + start) / batch * cost[-1]
        rows = torch.searchsorted(cost, at).clamp_max(len(points) - 1).unique()
        chosen = torch.cat((chosen, points[rows]))
    return chosen


def _unite(centres: Tensor, counts: Tensor, k: int) -> Tensor:
    """Unite the cheapest pairs of mutually best partners by Ward's cost `n1 n2 / (n1 + n2) |c1 - c2|^2`."""
    if len(centres) <= k:
        return centres
    distance, index = nearest(centres, centres, min(8, len(centres)))
    both = counts[:, None] * counts[index] / (counts[:, None] + counts[index])
    itself = index == torch.arange(len(centres), device=centres.device)[:, None]
    cost, column = torch.where(itself, float("inf"), both * distance).min(1)
    partner = index.gather(1, column[:, None])[:, 0]
    me = torch.arange(len(centres), device=centres.device)
    first = me[(partner[partner] == me) & (me < partner)]
    limit = max(1, min(len(centres) - k, int(UNITED_PER_ROUND * len(centres))))
    first = first[cost[first].argsort(stable=True)][:limit]
    second = partner[first]
    share = (counts[second] / (counts[first] + counts[second]))[:, None]
    centres = centres.index_copy(0, first, centres[first] + share * (centres[second] - centres[first]))
    kept = torch.ones(len(centres), dtype=torch.bool, device=centres.device)
    kept[second] = False
    return centres[kept]
