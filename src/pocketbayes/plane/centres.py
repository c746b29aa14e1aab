"""K-means on weighted cells: where the mixture starts.

Seeds are drawn by squared distance (k-means++), in batches that double, twice as many as wanted; then the pairs whose
union costs least are united until K are left, and Lloyd's iterations do the rest. The detour through 2 K seeds costs
little and ends in better optima than seeding K directly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.plane.chunks import slices, workers

# One distance matrix of the fallback: 128 MB.
DISTANCES = 1 << 24
OVERSEEDING = 2
# At most this share of the centres goes in one round of uniting, so that costs stay true while neighbours change.
UNITED_PER_ROUND = 0.1
TOLERANCE = 1e-4


def nearest(points: Tensor, centres: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
    """Squared distances and positions of the ``k`` nearest centres, (n, k) each, by a k-d tree on a CPU.

    Args:
        points: (n, 2), float64.
        centres: (m, 2), float64, ``m >= k``.
        k: how many.
    """
    if points.device.type == "cpu":
        from scipy.spatial import cKDTree

        distance, index = cKDTree(centres.numpy()).query(points.numpy(), k=[*range(1, k + 1)], workers=workers())
        return torch.from_numpy(distance).square(), torch.from_numpy(index)
    return nearest_by_matrix(points, centres, k)


def nearest_by_matrix(points: Tensor, centres: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what :func:`nearest` gives, from all distances: for devices that have no trees."""
    found = [
        torch.cdist(points[part], centres, compute_mode="donot_use_mm_for_euclid_dist").topk(k, largest=False)
        for part in slices(len(points), max(1, DISTANCES // len(centres)))
    ]
    return torch.cat([f.values for f in found]).square(), torch.cat([f.indices for f in found])


def kmeans(weight: Tensor, points: Tensor, k: int, seed: int = 0, iterations: int = 20) -> Tensor:
    """Centre that lessen ``sum_i weight_i min_k |x_i - c_k|^2``.

    Args:
        weight: (m,), float64.
        points: (m, 2), float64.
        k: number of centres; fewer come back where there are fewer distinct points.
        seed: of the drawing.
        iterations: at most so many of Lloyd's.

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
    """Return means and counts of the points nearest to each centre that has any, and the cost before."""
    distance, index = nearest(points, centres)
    index = index[:, 0]
    counts = torch.bincount(index, weight, len(centres))
    # About the old centre: a sum of small numbers, where stds of 1e-8 would drown.
    gap = points - centres[index]
    moved = torch.stack([torch.bincount(index, weight * gap[:, axis], len(centres)) for axis in (0, 1)], 1)
    held = counts > 0
    return centres[held] + moved[held] / counts[held, None], counts[held], float((weight * distance[:, 0]).sum())


def _seed(weight: Tensor, points: Tensor, k: int, seed: int) -> Tensor:
    """Compute ``k`` distinct points or fewer, each batch drawn systematically in proportion to the cost so far."""
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
    """Unite the cheapest pairs, each other's best partners, by Ward's cost ``n1 n2 / (n1 + n2) |c1 - c2|^2``."""
    if len(centres) <= k:
        return centres
    distance, index = nearest(centres, centres, min(8, len(centres)))
    both = counts[:, None] * counts[index] / (counts[:, None] + counts[index])
    own = index == torch.arange(len(centres), device=centres.device)[:, None]
    cost, column = torch.where(own, float("inf"), both * distance).min(1)
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
