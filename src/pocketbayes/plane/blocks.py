"""Tiles of cells with bounds on each Gaussian's score in a tile, used by EM and by exact search.

Cells are tiled by repeated halving. A Gaussian's score in a box is bounded from above and below, so that a tile
evaluates a few candidates instead of all K. Within a tile the expected score of a cell is linear in the cell's moments
about the tile's centre, so E and M steps are small matrix products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.plane.centres import nearest
from pocketbayes.plane.chunks import ordered_map, slices

# Elements in one chunk's largest intermediate: a few megabytes, which fit a cache.
CHUNK = 1 << 18
# Tiles that are bounded together before each is bounded by itself.
GROUP = 8
# EM skips a Gaussian that is this many nats below the best one everywhere in a tile.
NEGLIGIBLE_NATS = 10.0
CANDIDATES = 512
# Width of a cell among equal points: tiny, but with a finite logarithm.
NO_WIDTH = 1e-12


@dataclass(frozen=True)
class Components:
    """Scores `constant - |W (x - mean)|^2 / 2`: log densities, or minus half the squared distances.

    Attributes:
        mean: (..., K, 2).
        whitener: lower triangles (w11, w21, w22), (..., K, 3).
        constant: (..., K).
    """

    mean: Tensor
    whitener: Tensor
    constant: Tensor

    def __len__(self) -> int:
        return len(self.mean)

    def take(self, index: Tensor) -> Components:
        """Return the components at the given positions."""
        # Several times faster than indexing by a tensor of more than one dimension.
        flat = index.reshape(-1)
        return Components(
            self.mean.index_select(0, flat).reshape(*index.shape, 2),
            self.whitener.index_select(0, flat).reshape(*index.shape, 3),
            self.constant.index_select(0, flat).reshape(index.shape),
        )


def bounds(low: Tensor, high: Tensor, components: Components) -> tuple[Tensor, Tensor]:
    """Bound the score of every Gaussian in every box from above and below, (..., K) each.

    By the triangle inequality: `|W (x - m)|` differs from `|W (centre - m)|` by at most `max |W (x - centre)|`.

    Args:
        low: lower corners, (..., 2).
        high: upper corners, (..., 2).
        components: batch shape broadcasts against that of the boxes.
    """
    centre, half = ((low + high) / 2)[..., None, :], ((high - low) / 2)[..., None, :]
    # Contiguous columns and few passes: this is the innermost loop of every search.
    w11, w21, w22 = (w.contiguous() for w in components.whitener.unbind(-1))
    x, y = (m.contiguous() for m in components.mean.unbind(-1))
    dx, dy = centre[..., 0] - x, centre[..., 1] - y
    second = (dx * w21).addcmul_(dy, w22)
    distance = dx.mul_(w11).square_().addcmul_(second, second).sqrt_()
    second = (half[..., 0] * w21.abs()).addcmul_(half[..., 1], w22)
    reach = (half[..., 0] * w11).square_().addcmul_(second, second).sqrt_()
    lowest = components.constant - (distance + reach).square_().mul_(0.5)
    highest = components.constant - distance.sub_(reach).clamp_min_(0).square_().mul_(0.5)
    return highest, lowest


def shortlist(low: Tensor, high: Tensor, components: Components, k: int, slack: float) -> tuple[Tensor, Tensor]:
    """Return upper bounds per box, (..., K), and how many Gaussians may be among the `k` best in it, (...).

    A Gaussian is ruled out if `k` others are better everywhere in the box by more than `slack`.
    """
    highest, lowest = bounds(low, high, components)
    bar = lowest.amax(-1, keepdim=True) if k == 1 else lowest.topk(k, -1).values[..., -1:]
    return highest, (highest >= bar - slack).sum(-1)


def tile(points: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Group points into compact tiles of at most `size` by halving along the wider side.

    Consecutive tiles are close to each other.

    Args:
        points: (n, 2).
        size: largest tile; the number of tiles is a power of 2.

    Returns:
        Positions, (tiles, cells in a tile), and a mask of the valid ones: the last one is repeated to fill the tiles.
    """
    depth = max(0, math.ceil(math.log2(len(points) / size)))
    rows = torch.arange(-(-len(points) >> depth) << depth, device=points.device)[None]
    for _ in range(depth):
        x, y = points[rows.clamp_max(len(points) - 1)].unbind(-1)
        wider = x.amax(1) - x.amin(1) >= y.amax(1) - y.amin(1)
        order = torch.where(wider[:, None], x, y).argsort(stable=True)
        rows = rows.gather(1, order).reshape(2 * len(rows), -1)
    return rows.clamp_max(len(points) - 1), rows < len(points)


def narrow(low: Tensor, high: Tensor, components: Components, k: int, slack: float) -> list[tuple[Tensor, Tensor]]:
    """Find the candidates of boxes, of which consecutive ones are close, first for groups of boxes, then for each one.

    Args:
        low: lower corners, (boxes, 2).
        high: upper corners, (boxes, 2).
        components: K scores.
        k: how many best Gaussians are wanted.
        slack: see `shortlist`.

    Returns:
        Boxes, (b,), and their candidates with the highest bounds first, (b, w), by ascending `w`, which is at most
        half as many again as needed.
    """
    total, last = len(components), len(low) - 1
    if len(low) * total <= CHUNK:
        branch, groups = len(low), [(low.new_zeros(1, dtype=torch.int64), torch.arange(total, device=low.device)[None])]
    else:
        branch = GROUP
        # The last group repeats the last box.
        boxes = torch.arange(-(-len(low) // branch) * branch, device=low.device).clamp_max(last).reshape(-1, branch)
        groups = narrow(low[boxes].amin(1), high[boxes].amax(1), components, k, slack)

    def chunk(group: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        rows, chosen = group
        boxes = rows[:, None] * branch + torch.arange(branch, device=rows.device)
        inside = boxes.clamp_max(last)
        highest, needed = shortlist(low[inside], high[inside], components.take(chosen[:, None]), k, slack)
        needed = torch.where(boxes <= last, needed, 0)
        found, done = [], 0
        for width in _widths(chosen.shape[1]):
            row, child = ((needed > done) & (needed <= width)).nonzero().unbind(1)
            top = highest[row, child].topk(width, -1).indices
            found.append((boxes[row, child], chosen[row].gather(1, top)))
            done = width
        return found

    size = max(1, CHUNK // branch)
    pieces = [
        (rows[part], chosen[part])
        for rows, chosen in groups
        for part in slices(len(rows), max(1, size // chosen.shape[1]))
    ]
    by_width: dict[int, list[tuple[Tensor, Tensor]]] = {width: [] for width in _widths(total)}
    for found in ordered_map(chunk, pieces, low.device):
        for rows, chosen in found:
            by_width[chosen.shape[1]].append((rows, chosen))
    together = ([torch.cat(column) for column in zip(*found, strict=True)] for found in by_width.values() if found)
    return [(rows, chosen) for rows, chosen in together if len(rows)]


def _widths(most: int) -> list[int]:
    """Return numbers of candidates that differ by at most half: 1, 2, 3, 4, 6, 8, 12, ... and `most`."""
    widths = sorted({step << power for power in range(most.bit_length()) for step in (1, 3)})
    return [width for width in widths if width < most] + [most]


class Blocks:
    """Weighted cells in tiles, ready for sweeps.

    Args:
        weight: (m,).
        mean: (m, 2).
        cov: within each cell, (m, 3) as (xx, xy, yy).
        size: largest number of cells in a tile.
    """

    def __init__(self, weight: Tensor, mean: Tensor, cov: Tensor, size: int) -> None:
        order, counts = tile(mean, size)
        flat = order.flatten()
        mean = mean[flat].reshape(*order.shape, 2)
        self.low, self.high = mean.amin(1), mean.amax(1)
        self.centre = (self.low + self.high) / 2
        dx, dy = (mean - self.centre[:, None]).unbind(-1)
        xx, xy, yy = cov[flat].reshape(*order.shape, 3).unbind(-1)
        self.weight = weight[flat].reshape(order.shape) * counts
        self.total = float(weight.sum())
        self.features = torch.stack((torch.ones_like(dx), dx, dy, xx + dx * dx, xy + dx * dy, yy + dy * dy), -1)
        self.log_widths = 2 * _spacing(mean).log()

    def candidates(self, components: Components) -> list[tuple[Tensor, Tensor]]:
        """Return tiles, (t,), and their relevant Gaussians, (t, c), grouped by the number of Gaussians."""
        found = narrow(self.low, self.high, components, 1, NEGLIGIBLE_NATS)
        return [
            (rows[part], chosen[part, :CANDIDATES])
            for rows, chosen in found
            for part in slices(len(rows), max(1, CHUNK // (min(chosen.shape[1], CANDIDATES) * self.weight.shape[1])))
        ]

    def start(self, centres: Tensor) -> Tensor:
        """Return the sums of an M step, as `sweep` does, with each cell assigned to its nearest centre."""
        features = self.features.flatten(0, 1)
        tiles = self.centre.repeat_interleave(self.weight.shape[1], 0)
        index = nearest(tiles + features[:, 1:3], centres)[1][:, 0]
        moments = self.weight.flatten()[:, None] * features
        widths = moments[:, :1] * self.log_widths.flatten(0, 1)
        return _total(index, torch.cat((_shift(moments, tiles - centres[index]), widths), 1), len(centres))

    def sweep(self, components: Components, candidates: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
        """Run one E step and return the sums for the M step.

        Args:
            components: the current Gaussians.
            candidates: from `candidates`, of these Gaussians or slightly older ones.

        Returns:
            Sums `(1, dx, dy, dx^2, dx dy, dy^2, vx, vy)` about each Gaussian's mean, (K, 8), where `vx, vy` are
            logarithms of squared widths of cells; and the mean log density over points.
        """

        def chunk(group: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            rows, chosen = group
            few = components.take(chosen)
            gap = self.centre[rows, None] - few.mean
            features, weight = self.features[rows], self.weight[rows]
            score = features @ _coefficients(gap, few).mT
            best = score.amax(-1, keepdim=True)
            share = score.sub_(best).exp_()
            mass = share.sum(-1, keepdim=True)
            share *= weight[..., None] / mass
            moments = share.mT @ features
            widths = share.mT @ self.log_widths[rows]
            sums = torch.cat((_shift(moments, gap), widths), -1).reshape(-1, 8)
            return _total(chosen.reshape(-1), sums, len(components)), (weight * (best + mass.log())[..., 0]).sum()

        totals, objective = self.low.new_zeros((len(components), 8)), self.low.new_zeros(())
        for part_totals, part_objective in ordered_map(chunk, candidates, self.low.device):
            totals += part_totals
            objective += part_objective
        return totals, float(objective) / self.total


def _spacing(mean: Tensor) -> Tensor:
    """Return the width of every cell, (tiles, cells, 2), at which the data are resolved there.

    It follows from the gap to the nearer neighbour along each axis, so that stds of 1e-8 keep their own width in a tile
    that also holds stds of 1e-2.
    """
    size = mean.shape[1]
    if size == 1:
        return torch.full_like(mean, NO_WIDTH)
    values, order = mean.sort(1)
    gaps = torch.nn.functional.pad(values.diff(dim=1), (0, 0, 1, 1), value=math.inf)
    nearer = torch.minimum(gaps[:, :-1], gaps[:, 1:])
    return (math.sqrt(size) * torch.empty_like(nearer).scatter_(1, order, nearer)).clamp_min_(NO_WIDTH)


def _total(index: Tensor, values: Tensor, k: int) -> Tensor:
    """Sum the rows by index, (k, columns), in the order of the rows."""
    return torch.stack([torch.bincount(index, column.contiguous(), k) for column in values.unbind(1)], 1)


def _coefficients(gap: Tensor, components: Components) -> Tensor:
    """Return the coefficients (..., 6) that turn a cell's moments about the tile's centre into its expected score."""
    w11, w21, w22 = components.whitener.unbind(-1)
    xx, xy, yy = w11.square() + w21.square(), w21 * w22, w22.square()
    gx, gy = gap.unbind(-1)
    first = gx * w11
    second = gx * w21 + gy * w22
    at_centre = components.constant - (first.square() + second.square()) / 2
    return torch.stack((at_centre, -(xx * gx + xy * gy), -(xy * gx + yy * gy), -xx / 2, -xy, -yy / 2), -1)


def _shift(moments: Tensor, gap: Tensor) -> Tensor:
    """Convert moments about the tile's centre, (..., 6), to moments about the point at `-gap` from it."""
    n, x, y, xx, xy, yy = moments.unbind(-1)
    gx, gy = gap.unbind(-1)
    shifted = (
        n,
        x + n * gx,
        y + n * gy,
        xx + 2 * gx * x + n * gx * gx,
        xy + gx * y + gy * x + n * gx * gy,
        yy + 2 * gy * y + n * gy * gy,
    )
    return torch.stack(shifted, -1)
