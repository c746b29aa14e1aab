"""Reduction of the number of Gaussians: small ones are dissolved, close ones are merged."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.plane.centres import nearest
from pocketbayes.plane.chunks import fixed_order
from pocketbayes.plane.gaussians import MergeRule, merge, w2_squared
from pocketbayes.plane.mixture import PlaneMixture

Reading = Literal["value", "difference"]
READINGS: tuple[str, ...] = ("value", "difference")
# W2 below 1 % and a Gaussian's radius below 10 % of the cloud's root mean square radius (see `merge_all`).
RELATIVE_TAU_D = 1e-4
RELATIVE_TAU_V = 1e-2
RELATIVE_TAU_G = 2.0
NEIGHBOURS = 8


def dissolve(mixture: PlaneMixture, counts: Tensor, n_min: int) -> tuple[PlaneMixture, Tensor]:
    """Drop the Gaussians with fewer than `n_min` weights.

    Args:
        mixture: K Gaussians.
        counts: weights assigned to each, (K,).
        n_min: 30 in the paper's text, 20 in its table; 0 drops nothing.

    Returns:
        The remaining mixture, and the new number of every old Gaussian, (K,), -1 if it was dissolved.
    """
    kept = counts >= n_min
    return mixture.take(kept), torch.where(kept, kept.cumsum(0) - 1, -1)


@fixed_order()
def merge_all(
    mixture: PlaneMixture,
    counts: Tensor,
    gradients: Tensor | None = None,
    *,
    tau_d: float | None = None,
    tau_g: float | None = None,
    tau_v: float | None = None,
    how: MergeRule = "moments",
    reading: Reading = "value",
) -> tuple[PlaneMixture, Tensor, Tensor]:
    """Merge neighbours with `W2^2 < tau_d`, `Delta_g < tau_g` and `Delta_v < tau_v` until no such pair is left.

    Each Gaussian is compared with its eight nearest by centre. Each round merges the pairs that are mutually closest,
    which always include the closest pair of all. `Delta_g` compares the mean absolute gradient over a Gaussian's
    weights, `Delta_v` the trace of its covariance.

    Args:
        mixture: K Gaussians.
        counts: weights assigned to each, (K,).
        gradients: mean absolute gradient over the weights of each, (K,); without them `tau_g` is ignored.
        tau_d: largest squared distance. The paper's two values differ by five orders of magnitude, since they scale
            with the cloud; the default is 1e-4 times the trace of the cloud's covariance (count-weighted, within and
            between Gaussians), which is independent of the scale of the weights.
        tau_g: largest gradient; by default twice the mean over the weights. The paper's 0.15 excluded no pair in our
            networks.
        tau_v: largest variance; by default 1e-2 times that of the cloud. The paper's 1e-3 excluded none either.
        how: the rule of `merge`.
        reading: `value`: both Gaussians lie below the thresholds (the paper's text); `difference`: the difference
            between them does (its algorithm).

    Returns:
        The merged mixture, its counts, and the new number of every old Gaussian, (K,).
    """
    check_choice("reading of the merge thresholds", reading, READINGS)
    means, covs, weights, counts = mixture.means, mixture.covs, mixture.weights, counts.to(torch.float64)
    mapping = torch.arange(len(means), device=means.device)
    spread = _cloud_variance(means, covs, counts)
    tau_d = RELATIVE_TAU_D * spread if tau_d is None else tau_d
    tau_v = RELATIVE_TAU_V * spread if tau_v is None else tau_v
    if tau_g is None:
        tau_g = RELATIVE_TAU_G * float((gradients * counts).sum() / counts.sum()) if gradients is not None else 0.0
    while len(means) > 1:
        first, second = _pairs(means, covs, gradients, tau_d, tau_g, tau_v, reading)
        if len(first) == 0:
            break
        parts = (means[first], covs[first], counts[first], means[second], covs[second], counts[second])
        mean, cov, count = merge(*parts, how=how)
        if gradients is not None:
            both = (gradients[first] * counts[first] + gradients[second] * counts[second]) / count.clamp_min(1)
            gradients = gradients.index_copy(0, first, both.to(gradients.dtype))
        weights = weights.index_add(0, first, weights[second])
        means, covs = means.index_copy(0, first, mean), covs.index_copy(0, first, cov)
        counts = counts.index_copy(0, first, count)
        kept = torch.ones(len(means), dtype=torch.bool, device=means.device)
        kept[second] = False
        target = torch.arange(len(means), device=means.device).index_copy(0, second, first)
        mapping = (kept.cumsum(0) - 1)[target[mapping]]
        means, covs, weights, counts = means[kept], covs[kept], weights[kept], counts[kept]
        gradients = None if gradients is None else gradients[kept]
    return PlaneMixture(means, covs, weights), counts.round().to(torch.int64), mapping


def _pairs(
    means: Tensor, covs: Tensor, gradients: Tensor | None, tau_d: float, tau_g: float, tau_v: float, reading: str
) -> tuple[Tensor, Tensor]:
    """Return disjoint pairs to merge, each the closest allowed pair of both of its Gaussians."""
    total = len(means)
    _, near = nearest(means, means, min(NEIGHBOURS + 1, total))
    me = torch.arange(total, device=means.device)[:, None].expand_as(near)
    # Being a neighbour is not symmetric, so take each pair once, from either side.
    pairs = (torch.minimum(me, near) * total + torch.maximum(me, near))[me != near].unique()
    first, second = pairs // total, pairs % total
    distance = w2_squared(means[first], covs[first], means[second], covs[second])
    allowed = distance < tau_d
    for quantity, limit in ((gradients, tau_g), (covs[:, 0, 0] + covs[:, 1, 1], tau_v)):
        if quantity is not None:
            one, other = quantity[first], quantity[second]
            allowed &= ((one - other).abs() if reading == "difference" else torch.maximum(one, other)) < limit
    order = distance[allowed].argsort(stable=True)
    first, second = first[allowed][order], second[allowed][order]
    rank = torch.arange(len(first), device=means.device)
    best = torch.full((total,), len(first), device=means.device)
    best = best.scatter_reduce(0, first, rank, "amin").scatter_reduce(0, second, rank, "amin")
    chosen = (best[first] == rank) & (best[second] == rank)
    return first[chosen], second[chosen]


def _cloud_variance(means: Tensor, covs: Tensor, counts: Tensor) -> float:
    share = (counts / counts.sum().clamp_min(1))[:, None]
    centre = (share * means).sum(0)
    within = share[:, 0] * (covs[:, 0, 0] + covs[:, 1, 1])
    return float((share * (means - centre).square()).sum() + within.sum())
