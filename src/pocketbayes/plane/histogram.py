"""A fine histogram of the plane: a small, additive summary of millions of points with exact moments.

Each axis is warped to 2^16 levels, half of them allocated by mass (so that stds of 1e-8 beside stds of 1e-2 keep their
shape), half evenly. A cell is a quadtree node over these levels, that is a range of Morton codes, split while its
scatter is large, so that cells are fine where points are dense. Each cell stores count, mean and second moments.
Histograms over one grid are merged by addition, which also divides the work among processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.plane.chunks import fixed_order, ordered_map, slices

CHUNK = 1 << 18
BITS = 16
# A large table is only worthwhile for many points.
TABLE_BITS = (16, 22)
MANY = 1 << 20
# Points that curves and grids are fitted to.
SAMPLE = 1 << 18
MOST_TILT = 4


@dataclass(frozen=True)
class Axis:
    """A monotone, piecewise linear map from values to levels 0 .. 2^16 - 1 by three table lookups.

    A piece is the set of values with the same upper half of their float32 bits (sign, exponent, 7 bits of mantissa).

    Attributes:
        left: where each piece starts, (2^16,), float64.
        base: the level there.
        slope: levels per unit.
    """

    left: Tensor
    base: Tensor
    slope: Tensor

    @classmethod
    def fit(cls, values: Tensor, extent: Tensor) -> Axis:
        """Allocate half of the levels by each piece's share of the values, half by its width relative to `extent`."""
        pieces = torch.arange(1 << BITS, dtype=torch.int32, device=values.device) - (1 << (BITS - 1))
        bits = pieces << BITS
        left = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32).double()
        low, high = values.amin(), values.amax()
        # Pieces outside the range (and those of NaN and infinity) have no width.
        start = left.nan_to_num(nan=float("inf")).clamp(low, high)
        start = torch.where(pieces < 0, torch.where(left.isnan(), low, start), start)
        width = torch.cat((start[1:], high[None])) - start
        mass = torch.bincount(_piece(values), minlength=1 << BITS) / len(values)
        levels = (width / extent.clamp_min(1e-300) + mass) * (1 << (BITS - 1))
        base = levels.cumsum(0) - levels
        return cls(start, base, torch.where(width > 0, levels / width.clamp_min(1e-300), 0.0))

    def level(self, values: Tensor) -> Tensor:
        """Return the level of each value, int64."""
        piece = _piece(values)
        left, base, slope = (column.index_select(0, piece) for column in (self.left, self.base, self.slope))
        level = torch.addcmul(base, slope, (values.to(torch.float64) - left).clamp_min_(0))
        return level.to(torch.int64).clamp_(0, (1 << BITS) - 1)


def _piece(values: Tensor) -> Tensor:
    """Return the upper 16 bits of a float32 as a number that grows with the value."""
    bits = values.to(torch.float32).contiguous().view(torch.int32)
    return (torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> BITS) + (1 << (BITS - 1))


@dataclass(frozen=True)
class Curve:
    """A Morton curve through the warped plane, along which points that are close to each other are close.

    Attributes:
        x: levels of the first axis.
        y: levels of the second axis.
        x_code: contribution of each level of the first axis to a Morton code, (2^16,).
        y_code: contribution of each level of the second axis.
        span: number of codes, at most 2^32.
    """

    x: Axis
    y: Axis
    x_code: Tensor
    y_code: Tensor
    span: int

    def code(self, points: Tensor) -> Tensor:
        """Return Morton codes: the bits of both levels interleaved."""
        x, y = points.detach().unbind(1)
        return self.x_code.index_select(0, self.x.level(x)) + self.y_code.index_select(0, self.y.level(y))

    def order(self, points: Tensor) -> Tensor:
        """Return the positions of the points along the curve, (n,) int64."""
        codes = torch.empty(len(points), dtype=torch.int32, device=points.device)

        def chunk(part: slice) -> None:
            codes[part] = self.code(points[part]) - (1 << 31)

        for _ in ordered_map(chunk, slices(len(points), CHUNK), points.device):
            pass
        return codes.argsort(stable=True)


@dataclass(frozen=True)
class Grid:
    """The positions of the cells, made once (on one machine) and used for every part of the cloud.

    Attributes:
        curve: cells are ranges of its codes.
        starts: first code of each cell, (cells,), ascending from 0.
        anchors: a point in or near each cell, (cells, 2), as the origin of its sums, which avoids cancellation.
        table: the cell of every prefix of a code, -1 if it has several, (2^16,) or (2^22,) int32.
    """

    curve: Curve
    starts: Tensor
    anchors: Tensor
    table: Tensor

    def __len__(self) -> int:
        return len(self.starts)

    def locate(self, points: Tensor) -> Tensor:
        """Return the cell of every point, (n,) int64; call it on chunks to limit memory."""
        code = self.curve.code(points)
        cell = self.table.index_select(0, code // (self.curve.span // len(self.table))).to(torch.int64)
        rows = (cell < 0).nonzero()[:, 0]
        cell[rows] = torch.searchsorted(self.starts, code[rows], right=True) - 1
        return cell


@dataclass(frozen=True)
class Histogram:
    """Sums `(1, dx, dy, dx^2, dx dy, dy^2)` over the points of each cell, (cells, 6), about the grid's anchors."""

    grid: Grid
    sums: Tensor

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of both clouds together."""
        if self.grid is not other.grid and not (
            torch.equal(self.grid.starts, other.grid.starts) and torch.equal(self.grid.anchors, other.grid.anchors)
        ):
            raise UserError("histograms of different grids cannot be added: make one grid and use it for every part")
        return Histogram(self.grid, self.sums + other.sums)

    def cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights (m,), means (m, 2) and covariances (m, 3) as (xx, xy, yy) of the non-empty cells."""
        held = self.sums[:, 0] > 0
        sums = self.sums[held]
        weight = sums[:, 0]
        first = sums[:, 1:3] / weight[:, None]
        second = sums[:, 3:] / weight[:, None]
        xx = (second[:, 0] - first[:, 0].square()).clamp_min(0)
        yy = (second[:, 2] - first[:, 1].square()).clamp_min(0)
        bound = (xx * yy).sqrt()
        xy = torch.minimum(torch.maximum(second[:, 1] - first[:, 0] * first[:, 1], -bound), bound)
        return weight, self.grid.anchors[held] + first, torch.stack((xx, xy, yy), 1)


@fixed_order()
def make_curve(points: Tensor, size: int = SAMPLE, seed: int = 0) -> Curve:
    """Fit a curve to (a sample of at most `size` of) the points, (n, 2)."""
    return _curve(_sample(points.detach(), size, seed))


@fixed_order()
def make_grid(points: Tensor, cells: int, seed: int = 0) -> Grid:
    """Fit a grid of about `cells` cells to the cloud (at most 1.5 times as many that hold points).

    Args:
        points: (n, 2); of very many, a random sample is used.
        cells: number of cells; with as many cells as points, nearly every distinct point gets its own.
        seed: of the sample.
    """
    total = len(points)
    points = _sample(points.detach(), max(SAMPLE, cells), seed)
    if total == 0 or not bool(torch.isfinite(points).all()):
        raise UserError("cannot fit a grid: there must be points, and means and stds must be finite")
    curve = _curve(points)
    codes, order = curve.code(points).sort()
    points = points[order]
    levels = torch.stack((curve.x.level(points[:, 0]), curve.y.level(points[:, 1])), 1)
    starts, first = _split(codes, curve.span, levels, _even_levels(points), cells)
    # The number of cells that start up to the first and up to the last code of each prefix.
    prefixes = 1 << TABLE_BITS[total >= MANY]
    unit = curve.span // prefixes
    lowest = torch.bincount((starts + unit - 1) // unit, minlength=prefixes)[:prefixes].cumsum(0) - 1
    highest = torch.bincount(starts // unit, minlength=prefixes).cumsum(0) - 1
    table = torch.where(lowest == highest, lowest, -1).to(torch.int32)
    return Grid(curve, starts, points[first], table)


def _sample(points: Tensor, size: int, seed: int) -> Tensor:
    if len(points) > size:
        generator = torch.Generator().manual_seed(seed)
        points = points[torch.randint(len(points), (size,), generator=generator).to(points.device)]
    return points.to(torch.float64)


def _curve(points: Tensor) -> Curve:
    # The same even steps on both axes make cells in the tails square.
    extent = (points.amax(0) - points.amin(0)).amax()
    return Curve(Axis.fit(points[:, 0], extent), Axis.fit(points[:, 1], extent), *_interleaving(points))


@fixed_order()
def make_histogram(points: Tensor, grid: Grid, weights: Tensor | None = None) -> Histogram:
    """Bin the points, a bounded chunk at a time.

    Args:
        points: (n, 2).
        grid: from `make_grid`.
        weights: weight of each point, (n,); 1 by default.
    """

    def chunk(part: slice) -> Tensor:
        cell = grid.locate(points[part])
        gap = points[part].detach().to(torch.float64) - grid.anchors.index_select(0, cell)
        dx, dy = gap[:, 0].contiguous(), gap[:, 1].contiguous()
        w = None if weights is None else weights[part].detach().to(torch.float64)
        terms = [None, dx, dy, dx * dx, dx * dy, dy * dy]
        if w is not None:
            terms = [w if term is None else w * term for term in terms]
        return torch.stack([torch.bincount(cell, term, len(grid)).to(torch.float64) for term in terms], 1)

    sums = points.new_zeros((len(grid), 6), dtype=torch.float64)
    for part in ordered_map(chunk, slices(len(points), CHUNK), points.device):
        sums += part
    return Histogram(grid, sums)


def _interleaving(points: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return each level's contribution to a code for both axes, and the number of codes.

    The axis along which the cloud is wider is divided more finely, by up to 2^4, so that cells are nearly square.
    """
    ranks = torch.tensor([0.25, 0.75], dtype=torch.float64, device=points.device) * (len(points) - 1)
    low, high = points.sort(0).values[ranks.round().long()]
    width_x, width_y = (high - low).clamp_min(1e-300).tolist()
    tilt = min(max(round(math.log2(width_x / width_y)), -MOST_TILT), MOST_TILT)
    level = torch.arange(1 << BITS, device=points.device)
    bits = BITS - abs(tilt)
    wide = ((level >> bits) << 2 * bits) + _spread(level & ((1 << bits) - 1))
    narrow = 2 * _spread(level >> abs(tilt))
    return (wide, narrow, 1 << (BITS + bits)) if tilt >= 0 else (narrow, wide, 1 << (BITS + bits))


def _spread(v: Tensor) -> Tensor:
    v = (v | (v << 8)) & 0x00FF00FF
    v = (v | (v << 4)) & 0x0F0F0F0F
    v = (v | (v << 2)) & 0x33333333
    return (v | (v << 1)) & 0x55555555


def _even_levels(points: Tensor) -> Tensor:
    """Quantise the points to 2^20 even steps, the same for both axes."""
    low, high = points.amin(0), points.amax(0)
    return ((points - low) * ((1 << 20) / (high - low).amax().clamp_min(1e-300))).to(torch.int64)


def _scatter(coordinates: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function for the scatter of a range of points about their mean, relative to that of all points.

    Sums are integers, so there is no rounding.
    """
    sums = torch.nn.functional.pad(coordinates.cumsum(0), (0, 0, 1, 0))
    squares = torch.nn.functional.pad(coordinates.square().sum(1).cumsum(0), (1, 0))

    def scatter(low: Tensor, high: Tensor) -> Tensor:
        first = (sums[high] - sums[low]).double().square().sum(1)
        return (squares[high] - squares[low]).double() - first / (high - low).clamp_min(1)

    whole = scatter(squares.new_zeros(1), squares.new_full((1,), len(coordinates))).clamp_min(1e-300)
    return lambda low, high: scatter(low, high).clamp_min(0) / whole


def _split(codes: Tensor, span: int, warped: Tensor, even: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """Halve every node whose scatter exceeds a threshold, and lower the threshold until there are enough cells.

    A node's scatter is count times squared width, so equal scatter puts about sqrt(density) nodes per area, like the
    centres of an optimal quantiser. Warped coordinates add cells where points are dense, even ones add cells in the
    tails, where K-means places many centres.
    """
    in_warped, in_even = _scatter(warped), _scatter(even)

    def scatter(low: Tensor, high: Tensor) -> Tensor:
        return in_warped(low, high) + in_even(low, high)

    zero = codes.new_zeros(1)
    start, bits = zero.clone(), zero + (span.bit_length() - 1)
    low, high = zero.clone(), zero + len(codes)
    error = scatter(low, high)
    threshold = float(error[0])
    while int((high > low).sum()) < cells and threshold > 1e-18:
        # With a cell per point, split everything.
        threshold = threshold / 2 if cells < len(codes) else 0.0
        while bool((wide := (error > threshold) & (bits > 0)).any()):
            bit = bits[wide] - 1
            middle = start[wide] + (torch.ones_like(bit) << bit)
            cut = torch.searchsorted(codes, middle)
            stay = ~wide
            start = torch.cat((start[stay], start[wide], middle))
            bits = torch.cat((bits[stay], bit, bit))
            error = torch.cat((error[stay], scatter(low[wide], cut), scatter(cut, high[wide])))
            low, high = torch.cat((low[stay], low[wide], cut)), torch.cat((high[stay], cut, high[wide]))
    start, order = start.sort()
    return start, ((low + high) // 2)[order].clamp_max(len(codes) - 1)
