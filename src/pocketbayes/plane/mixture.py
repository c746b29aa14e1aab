"""A Gaussian mixture over the plane, fitted to a histogram by K-means and then EM, and the choice of its size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.plane.blocks import Blocks, Components
from pocketbayes.plane.centres import kmeans
from pocketbayes.plane.chunks import fixed_order, ordered_map, slices
from pocketbayes.plane.codes import entropy_bits
from pocketbayes.plane.gaussians import log_peak, whitened_norm_squared, whitening
from pocketbayes.plane.histogram import Histogram, make_grid, make_histogram
from pocketbayes.plane.search import best

# Enough cells to resolve the shape of each Gaussian.
CELLS_PER_GAUSSIAN = 64
CELLS = (1 << 15, 1 << 18)
CELL_FLOOR = 0.1
KMEANS_ITERATIONS = 20
TOLERANCE = 1e-3
"""Smallest gain in mean log-likelihood for which EM continues."""
MAX_GAUSSIANS = 8192
"""Largest number of Gaussians to try."""
BITS_TOLERANCE = 0.05
"""Accepted shortfall from the requested bits."""
RELATIVE_FLOOR = 1e-6
ABSOLUTE_FLOOR = 1e-24


@dataclass(frozen=True)
class PlaneMixture:
    """Mixture `p(x) = sum_k weights_k N(x; means_k, covs_k)` in the plane, all float64.

    Attributes:
        means: centres `(mean, std)`, (K, 2).
        covs: positive definite covariances, (K, 2, 2).
        weights: shares that sum to 1, (K,).
        log_likelihood: mean log density of the fitted points, a lower bound by Jensen within each cell; NaN if the
            mixture was changed since.
    """

    means: Tensor
    covs: Tensor
    weights: Tensor
    log_likelihood: float = math.nan

    def __len__(self) -> int:
        return len(self.means)

    def take(self, kept: Tensor) -> PlaneMixture:
        """Return the selected Gaussians with renormalised weights."""
        weights = self.weights[kept]
        return PlaneMixture(self.means[kept], self.covs[kept], weights / weights.sum())

    def components(self, weighted: bool = True) -> Components:
        """Score `log weights_k + log N(x; k)`, or, unweighted, minus half the squared Mahalanobis distance."""
        whiteners, _ = whitening(self.covs)
        constant = self.weights.log() + log_peak(self.covs) if weighted else torch.zeros_like(self.weights)
        return Components(self.means, whiteners, constant)

    def assign(self, points: Tensor) -> Tensor:
        """Compute `argmax_k weights_k N(x; k)` of every point, exactly and in bounded memory.

        Args:
            points: (n, 2).

        Returns:
            Numbers, (n,) int64; -1 if there are no Gaussians.
        """
        if len(self) == 0:
            return torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
        return best(points, self.components())[:, 0]

    @fixed_order()
    def log_density(self, points: Tensor) -> Tensor:
        """Compute `log p(x)` for every point, (n,) float64, over all K Gaussians."""
        parts = self.components()

        def chunk(part: slice) -> Tensor:
            gap = points[part, None].detach().to(torch.float64) - parts.mean
            return torch.logsumexp(parts.constant - whitened_norm_squared(gap, parts.whitener) / 2, 1)

        pieces = slices(len(points), max(1, (1 << 19) // max(1, len(self))))
        return torch.cat(list(ordered_map(chunk, pieces, points.device)))


def default_bins(k: int) -> int:
    """Return the number of cells for a fit of `k` Gaussians."""
    return min(max(CELLS_PER_GAUSSIAN * k, CELLS[0]), CELLS[1])


@fixed_order()
def fit_mixture(
    points: Tensor | Histogram,
    k: int,
    *,
    weights: Tensor | None = None,
    seed: int = 0,
    bins: int | None = None,
    iterations: int = 30,
) -> PlaneMixture:
    """Maximise `sum_i log sum_k pi_k N(x_i; m_k, S_k)` over the histogram (2DGBNN Eq. 3; its sign is a misprint).

    On a CPU the result depends on the seed, not on the number of threads.

    Args:
        points: the cloud, (n, 2), or its histogram, as merged from several machines.
        k: number of Gaussians; fewer are returned if there are fewer distinct points.
        weights: weight of each point, (n,).
        seed: of the histogram's sample and the K-means start.
        bins: cells of the histogram, by default 64 per Gaussian, between 2^15 and 2^18. With a bin per point the fit is
            to the points themselves.
        iterations: maximum of EM steps; 0 stops after K-means.
    """
    if k < 1:
        raise UserError(f"a mixture needs at least one Gaussian, not k={k}")
    if not isinstance(points, Histogram):
        if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
            raise UserError(f"points must be a non-empty (n, 2) tensor of (mean, std), got shape {tuple(points.shape)}")
        points = make_histogram(points, make_grid(points, bins or default_bins(k), seed), weights)
    weight, mean, cov = points.cells()
    if len(weight) == 0 or not bool(torch.isfinite(points.sums).all()):
        raise UserError("cannot fit a mixture: means and stds must be finite, and some weights must be positive")
    centres = kmeans(weight, mean, k, seed, KMEANS_ITERATIONS)
    blocks = Blocks(weight, mean, cov, size=min(max(len(weight) // len(centres), 4), 64))
    return _expectation_maximisation(blocks, centres, iterations)


def _expectation_maximisation(blocks: Blocks, centres: Tensor, iterations: int) -> PlaneMixture:
    means, covs, weights = _maximise(centres, blocks.start(centres))
    before = -math.inf
    for step in range(iterations):
        components = PlaneMixture(means, covs, weights).components()
        # Shapes change fast at first, so update the candidates at steps 0, 1, 2, 4, 8, 16, ...
        if step & (step - 1) == 0:
            candidates = blocks.candidates(components)
        sums, likelihood = blocks.sweep(components, candidates)
        if likelihood < before + TOLERANCE:
            break
        before = likelihood
        means, covs, weights = _maximise(means, sums)
    mixture = PlaneMixture(means, covs, weights).take(weights > 0)
    return replace(mixture, log_likelihood=before) if iterations else mixture


def _maximise(means: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, covariances and weights from a sweep's sums about the old means."""
    counts = sums[:, 0]
    held = counts > 0
    averages = sums[:, 1:] / counts.clamp_min(1e-300)[:, None]
    dx, dy = averages[:, 0], averages[:, 1]
    means = means + torch.where(held[:, None], averages[:, :2], 0.0)
    xx = (averages[:, 2] - dx * dx).clamp_min(0)
    yy = (averages[:, 4] - dy * dy).clamp_min(0)
    bound = (xx * yy).sqrt()
    xy = torch.minimum(torch.maximum(averages[:, 3] - dx * dy, -bound), bound)
    # Keep covariances positive definite: add a third of a cell's width (the geometric mean over cells, since widths
    # differ by orders of magnitude) and a tiny constant for equal points.
    floor = CELL_FLOOR * averages[:, 5:].exp() + (RELATIVE_FLOOR * means).square() + ABSOLUTE_FLOOR
    covs = torch.stack((xx + floor[:, 0], xy, xy, yy + floor[:, 1]), 1).reshape(-1, 2, 2)
    return means, covs, counts / counts.sum()


def fit_by_bits(cloud: Histogram, bits: float, seed: int = 0, iterations: int = 30) -> PlaneMixture:
    """Fit the largest mixture whose weights have an entropy of at most `bits` (within 0.05), in at most four fits.

    `2^bits` Gaussians never exceed it; unequal weights allow more.
    """
    k = min(max(1, math.floor(2**bits)), MAX_GAUSSIANS)
    fitted = trial = fit_mixture(cloud, k, seed=seed, iterations=iterations)
    for _ in range(3):
        spent = entropy_bits(trial.weights)
        aim = min(max(1, math.floor(k * 2 ** (bits - BITS_TOLERANCE / 2 - spent))), MAX_GAUSSIANS)
        if bits - BITS_TOLERANCE <= spent <= bits or aim == k or len(trial) < k // 2:
            break
        k, trial = aim, fit_mixture(cloud, aim, seed=seed, iterations=iterations)
        if entropy_bits(trial.weights) <= bits:
            fitted = trial
    return fitted


def fit_by_bic(cloud: Histogram, seed: int = 0, iterations: int = 30) -> PlaneMixture:
    """Minimise `-2 log-likelihood + (6 K - 1) log n` over K = 1, 2, 4, 8, ... until it rises."""
    n = float(cloud.sums[:, 0].sum())

    def criterion(mixture: PlaneMixture) -> float:
        return -2 * n * mixture.log_likelihood + (6 * len(mixture) - 1) * math.log(n)

    k, fitted = 1, fit_mixture(cloud, 1, seed=seed, iterations=iterations)
    while k < MAX_GAUSSIANS:
        k *= 2
        trial = fit_mixture(cloud, k, seed=seed, iterations=iterations)
        if criterion(trial) >= criterion(fitted):
            break
        fitted = trial
    return fitted
