"""Exact search for the best Gaussians of every point without evaluating all K.

Points are binned. For groups of tiles, tiles and then cells, Gaussians are ruled out whose upper bound is below the
lower bound of enough others. Most cells keep one or a few candidates. Points in other cells (large ones in the tails)
are binned again, more finely; the last few are compared with all K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.plane.blocks import Components, narrow, shortlist, tile
from pocketbayes.plane.chunks import fixed_order, ordered_map, slices
from pocketbayes.plane.gaussians import whitened_norm_squared
from pocketbayes.plane.histogram import Grid, make_grid

POINTS = 1 << 18
SCORES = 1 << 18
# Below this number of scores it is faster to compute them all.
BRUTE_FORCE_SCORES = 1 << 22
CELLS = 1 << 17
TILE = 32
WIDTHS = (1, 4, 16)
# Bounds and scores are summed differently, and rounding must not rule out the best.
SLACK = 1e-9


@fixed_order()
def best(points: Tensor, components: Components, k: int = 1, grid: Grid | None = None) -> Tensor:
    """Compute `argtop-k_j score_j(x)` for every point, best first.

    Args:
        points: (n, 2).
        components: K scores.
        k: number of Gaussians per point, at most K.
        grid: cells that fit the points, if known.

    Returns:
        Positions, (n, min(k, K)), int64.
    """
    points = points.detach()
    k = min(k, len(components))
    if len(points) * len(components) <= BRUTE_FORCE_SCORES or len(components) <= max(WIDTHS):
        return _best_of_all(points, components, k)
    cell, low, high = _boxes(points, grid or make_grid(points, CELLS))
    candidates, needed = _rule_out(low, high, components, k)
    found = torch.empty((len(points), k), dtype=torch.int64, device=points.device)

    def chunk(part: slice) -> Tensor:
        cells, first = cell[part].long(), int(part.start)
        need, done = needed[cells], 0
        for width in WIDTHS:
            if width >= k:
                rows = ((need > done) & (need <= width)).nonzero()[:, 0]
                few = candidates[cells[rows], :width]
                found[rows + first] = few if width == 1 else _best_of(points[part][rows], components, few, k)
                done = width
        return (need > done).nonzero()[:, 0] + first

    rest = torch.cat(list(ordered_map(chunk, slices(len(points), POINTS), points.device)))
    if len(rest):
        finely = best if 2 * len(rest) < len(points) else _best_of_all
        found[rest] = finely(points[rest], components, k)
    return found


def _best_of(points: Tensor, components: Components, candidates: Tensor | None, k: int) -> Tensor:
    few = components if candidates is None else components.take(candidates)
    score = few.constant - whitened_norm_squared(points.to(torch.float64)[:, None] - few.mean, few.whitener) / 2
    top = score.argmax(1, keepdim=True) if k == 1 else score.topk(k, 1).indices
    return top if candidates is None else candidates.gather(1, top)


def _best_of_all(points: Tensor, components: Components, k: int) -> Tensor:
    parts = slices(len(points), max(1, SCORES // max(1, len(components))))
    found = list(ordered_map(lambda part: _best_of(points[part], components, None, k), parts, points.device))
    return torch.cat(found) if found else torch.empty((0, k), dtype=torch.int64, device=points.device)


def _boxes(points: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """Return the occupied cell of every point, (n,) int32, and the bounding box of the points in each cell."""
    bottom = torch.full((len(grid), 2), float("inf"), dtype=torch.float64, device=points.device)
    low, high = bottom.clone(), -bottom
    cell = torch.empty(len(points), dtype=torch.int32, device=points.device)

    def chunk(part: slice) -> tuple[Tensor, Tensor]:
        cells = grid.locate(points[part])
        cell[part] = cells
        values, index = points[part].to(torch.float64), cells[:, None].expand(-1, 2)
        return (
            bottom.clone().scatter_reduce_(0, index, values, "amin"),
            (-bottom).scatter_reduce_(0, index, values, "amax"),
        )

    for part_low, part_high in ordered_map(chunk, slices(len(points), 2 * POINTS), points.device):
        torch.minimum(low, part_low, out=low)
        torch.maximum(high, part_high, out=high)
    held = high[:, 0] >= low[:, 0]
    renumbered = (held.cumsum(0) - 1).to(torch.int32)
    for part in slices(len(points), 2 * POINTS):
        cell[part] = renumbered[cell[part].long()]
    return cell, low[held], high[held]


def _rule_out(low: Tensor, high: Tensor, components: Components, k: int) -> tuple[Tensor, Tensor]:
    """Return each cell's candidates by descending bound, (cells, 16), and how many it needs (more than 16: refine)."""
    width = max(WIDTHS)
    order, _ = tile((low + high) / 2, TILE)
    candidates = torch.empty((len(low), width), dtype=torch.int64, device=low.device)
    needed = torch.empty(len(low), dtype=torch.int64, device=low.device)
    for part, chosen, _ in narrow(low[order].amin(1), high[order].amax(1), components, k, SLACK, width):
        for piece in slices(len(chosen), max(1, SCORES // (order.shape[1] * chosen.shape[1]))):
            few, cells = chosen[piece], order[part][piece]
            highest, need = shortlist(low[cells], high[cells], components.take(few[:, None]), k, SLACK)
            top = highest.topk(width, -1).indices
            candidates[cells] = few[:, None].expand(-1, order.shape[1], -1).gather(2, top)
            needed[cells] = need
    return candidates, needed
