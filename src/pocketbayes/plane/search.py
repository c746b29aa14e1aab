"""Exact search for the best Gaussians of every point without evaluating all K.

Points are sorted along a space-filling curve, so that consecutive ones form small tiles. For groups of tiles and then
tiles, Gaussians are ruled out whose upper bound is below the lower bound of enough others. Most tiles keep one or a few
candidates, which are compared point by point.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.plane.blocks import Components, narrow
from pocketbayes.plane.chunks import fixed_order, ordered_map, slices
from pocketbayes.plane.gaussians import whitened_norm_squared
from pocketbayes.plane.histogram import make_curve

SCORES = 1 << 18
# Below this number of scores it is faster to compute them all.
BRUTE_FORCE_SCORES = 1 << 22
TILE = 64
# Bounds and scores are summed differently, and rounding must not rule out the best.
SLACK = 1e-9


@fixed_order()
def best(points: Tensor, components: Components, k: int = 1) -> Tensor:
    """Compute `argtop-k_j score_j(x)` for every point, best first.

    Args:
        points: (n, 2).
        components: K scores.
        k: number of Gaussians per point, at most K.

    Returns:
        Positions, (n, min(k, K)), int64.
    """
    points = points.detach()
    k = min(k, len(components))
    found = torch.empty((len(points), k), dtype=torch.int64, device=points.device)
    if len(points) * len(components) <= BRUTE_FORCE_SCORES:
        everything = torch.arange(len(components), device=points.device)[None]
        for part in slices(len(points), max(1, SCORES // max(1, len(components)))):
            found[part] = _best_of(points[None, part], components, everything, k)[0]
        return found
    order = make_curve(points).order(points)
    # The last tile repeats the last point.
    filled = torch.cat((order, order[-1:].expand(-len(order) % TILE)))
    tiles = points.index_select(0, filled).reshape(-1, TILE, 2)
    low, high = tiles.amin(1).to(torch.float64), tiles.amax(1).to(torch.float64)
    numbers = torch.empty((len(tiles), TILE, k), dtype=torch.int64, device=points.device)

    def chunk(group: tuple[Tensor, Tensor]) -> None:
        rows, few = group
        numbers[rows] = few[:, None] if few.shape[1] == 1 else _best_of(tiles[rows], components, few, k)

    pieces = (
        (rows[part], few[part])
        for rows, few in narrow(low, high, components, k, SLACK)
        for part in slices(len(rows), max(1, SCORES // (TILE * few.shape[1])))
    )
    for _ in ordered_map(chunk, pieces, points.device):
        pass
    found[order] = numbers.flatten(0, 1)[: len(points)]
    return found


def _best_of(tiles: Tensor, components: Components, candidates: Tensor, k: int) -> Tensor:
    """Return the best candidates of each tile, (b, w), for each of its points, (b, size, 2), as (b, size, k)."""
    few = components.take(candidates[:, None])
    score = few.constant - whitened_norm_squared(tiles.to(torch.float64)[:, :, None] - few.mean, few.whitener) / 2
    top = score.argmax(-1, keepdim=True) if k == 1 else score.topk(k, -1).indices
    return candidates[:, None].expand(score.shape).gather(-1, top)
