"""The number of Gaussians, from the bits per index or by the Bayesian information criterion."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pocketbayes.plane.histogram import Histogram
from pocketbayes.plane.mixture import PlaneMixture, fit_mixture

MOST = 8192
# Accepted shortfall from the requested bits.
BITS_TOLERANCE = 0.05


def entropy_bits(counts: Tensor) -> float:
    """Compute ``-sum_k p_k log2 p_k`` with ``p = counts / sum counts``, the bits per index of an ideal code."""
    shares = counts[counts > 0].to(torch.float64)
    shares = shares / shares.sum()
    return max(0.0, float(-(shares * shares.log2()).sum()))


def fit_by_bits(cloud: Histogram, bits: float, seed: int = 0, iterations: int = 30) -> PlaneMixture:
    """Fit the largest mixture whose weights have an entropy of at most ``bits`` (within 0.05), in at most four fits.

    ``2^bits`` Gaussians never exceed it; unequal weights allow more.
    """
    k = min(max(1, math.floor(2**bits)), MOST)
    fitted = trial = fit_mixture(cloud, k, seed=seed, iterations=iterations)
    for _ in range(3):
        spent = entropy_bits(trial.weights)
        aim = min(max(1, math.floor(k * 2 ** (bits - BITS_TOLERANCE / 2 - spent))), MOST)
        if bits - BITS_TOLERANCE <= spent <= bits or aim == k or len(trial) < k // 2:
            break
        k, trial = aim, fit_mixture(cloud, aim, seed=seed, iterations=iterations)
        if entropy_bits(trial.weights) <= bits:
            fitted = trial
    return fitted


def fit_by_bic(cloud: Histogram, seed: int = 0, iterations: int = 30) -> PlaneMixture:
    """Minimise ``-2 log-likelihood + (6 K - 1) log n`` over K = 1, 2, 4, 8, ... until it rises."""
    n = float(cloud.sums[:, 0].sum())

    def criterion(mixture: PlaneMixture) -> float:
        return -2 * n * mixture.log_likelihood + (6 * len(mixture) - 1) * math.log(n)

    k, fitted = 1, fit_mixture(cloud, 1, seed=seed, iterations=iterations)
    while k < MOST:
        k *= 2
        trial = fit_mixture(cloud, k, seed=seed, iterations=iterations)
        if criterion(trial) >= criterion(fitted):
            break
        fitted = trial
    return fitted
