"""Closed forms for Gaussians in the plane: Wasserstein distance, merging and Mahalanobis distance.

Everything is batched over leading dimensions and computed in float64, since a std of 1e-8 means a determinant of 1e-32;
results have the dtype of the first argument.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError

MergeRule = Literal["moments", "barycenter", "paper"]
MERGE_RULES: tuple[str, ...] = ("moments", "barycenter", "paper")


def _doubles(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().to(torch.float64) for t in tensors]


def _trace(A: Tensor) -> Tensor:
    return A[..., 0, 0] + A[..., 1, 1]


def _root_det(A: Tensor) -> Tensor:
    # Rounding can push the determinant of a thin ellipse below zero.
    return (A[..., 0, 0] * A[..., 1, 1] - A[..., 0, 1] * A[..., 1, 0]).clamp_min(0).sqrt()


def _outer(v: Tensor) -> Tensor:
    return v[..., :, None] * v[..., None, :]


def sqrt2x2(A: Tensor, root_det: Tensor | None = None) -> Tensor:
    """Compute `A^(1/2) = (A + sqrt(det A) I) / sqrt(tr A + 2 sqrt(det A))` for 2x2 `A` with eigenvalues >= 0.

    Args:
        A: matrices of shape (..., 2, 2).
        root_det: `sqrt(det A)` if it is known more precisely than from `A`.
    """
    root = _root_det(A) if root_det is None else root_det
    scale = (_trace(A) + 2 * root).clamp_min(0).sqrt()
    numerator = A + root[..., None, None] * torch.eye(2, dtype=A.dtype, device=A.device)
    return torch.where(scale[..., None, None] > 0, numerator / scale.clamp_min(1e-300)[..., None, None], 0.0)


def w2_squared(m1: Tensor, S1: Tensor, m2: Tensor, S2: Tensor) -> Tensor:
    """Compute the squared 2-Wasserstein distance of Gaussians.

    It is `|m1 - m2|^2 + tr S1 + tr S2 - 2 sqrt(tr(S1 S2) + 2 sqrt(det S1 det S2))`. In two dimensions the trace of
    `(S1^(1/2) S2 S1^(1/2))^(1/2)` needs no matrix root: for eigenvalues a, b of a 2x2 matrix, `(sqrt a + sqrt b)^2 =
    tr + 2 sqrt(det)`.

    Args:
        m1: means, (..., 2).
        S1: covariances, (..., 2, 2).
        m2: means, (..., 2).
        S2: covariances, (..., 2, 2).

    Returns:
        Distances of the broadcast batch shape, never negative.
    """
    dtype = m1.dtype
    m1, S1, m2, S2 = _doubles(m1, S1, m2, S2)
    trace_product = S1[..., 0, 0] * S2[..., 0, 0] + 2 * S1[..., 0, 1] * S2[..., 0, 1] + S1[..., 1, 1] * S2[..., 1, 1]
    cross = (trace_product + 2 * _root_det(S1) * _root_det(S2)).clamp_min(0).sqrt()
    bures = (_trace(S1) + _trace(S2) - 2 * cross).clamp_min(0)
    return ((m1 - m2).square().sum(-1) + bures).to(dtype)


def merge(
    m1: Tensor,
    S1: Tensor,
    n1: Tensor | float,
    m2: Tensor,
    S2: Tensor,
    n2: Tensor | float,
    how: MergeRule = "moments",
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace two Gaussians of `n1` and `n2` weights by one.

    With `w = n / (n1 + n2)` and `d = m1 - m2`:

    - `moments`: `S = w1 S1 + w2 S2 + w1 w2 d d^T`: the exact mean and covariance of the united cloud.
    - `barycenter`: `S = w1^2 S1 + w2^2 S2 + w1 w2 (R + R^T)` with `R = (S1 S2)^(1/2)`: the W2 barycenter, which
      lies on the geodesic between the two and ignores their distance.
    - `paper` (2DGBNN Eqs. 5, 6, as printed): `m = (m1 + m2)/2` and
      `S = (S1 + S2)/2 + d d^T/8 + (S1^(1/2) S2 S1^(1/2))^(1/2)/2`. It ignores the counts and is not
      idempotent: two equal Gaussians become one with 1.5 times the covariance.

    Args:
        m1: means, (..., 2).
        S1: covariances, (..., 2, 2).
        n1: counts, (...).
        m2: means, (..., 2).
        S2: covariances, (..., 2, 2).
        n2: counts, (...).
        how: the rule.

    Returns:
        Means, covariances and counts `n1 + n2` of the merged Gaussians.
    """
    dtype = m1.dtype
    m1, S1, m2, S2 = _doubles(m1, S1, m2, S2)
    counts1 = torch.as_tensor(n1, dtype=torch.float64, device=m1.device)
    counts2 = torch.as_tensor(n2, dtype=torch.float64, device=m1.device)
    total = counts1 + counts2
    w1 = torch.where(total > 0, counts1 / total, 0.5)[..., None]
    w2 = 1 - w1
    W1, W2 = w1[..., None], w2[..., None]
    gap = _outer(m1 - m2)
    mean = w1 * m1 + w2 * m2
    if how == "moments":
        cov = W1 * S1 + W2 * S2 + W1 * W2 * gap
    elif how == "barycenter":
        root = sqrt2x2(S1 @ S2, _root_det(S1) * _root_det(S2))
        cov = W1.square() * S1 + W2.square() * S2 + W1 * W2 * (root + root.mT)
    elif how == "paper":
        mean = (m1 + m2) / 2
        half = sqrt2x2(S1)
        cov = (S1 + S2) / 2 + gap / 8 + sqrt2x2(half @ S2 @ half, _root_det(S1) * _root_det(S2)) / 2
    else:
        raise UnknownNameError("merge rule", how, MERGE_RULES)
    return mean.to(dtype), ((cov + cov.mT) / 2).to(dtype), total


def whitening(covs: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `W = L^(-1)` with `S = L L^T`, and `log det W`.

    Args:
        covs: positive definite covariances, (..., 2, 2).

    Returns:
        The lower triangles `(w11, w21, w22)` stacked to (..., 3) in float64, and the log determinants (...).
    """
    covs = covs.detach().to(torch.float64)
    l11 = covs[..., 0, 0].sqrt()
    l21 = covs[..., 0, 1] / l11
    l22 = torch.maximum(covs[..., 1, 1] - l21.square(), 1e-14 * covs[..., 1, 1]).sqrt()
    w11, w22 = 1 / l11, 1 / l22
    return torch.stack((w11, -l21 * w11 * w22, w22), -1), w11.log() + w22.log()


def mahalanobis_squared(points: Tensor, means: Tensor, covs: Tensor, candidates: Tensor | None = None) -> Tensor:
    """Compute `(x - m)^T S^(-1) (x - m)`.

    Args:
        points: (n, 2).
        means: (K, 2).
        covs: (K, 2, 2), positive definite.
        candidates: Gaussians to evaluate for each point, (n, c); all of them by default.

    Returns:
        Squared distances, (n, K), or (n, c) where candidates are given.
    """
    dtype = points.dtype
    points, means = _doubles(points, means)
    whiteners, _ = whitening(covs)
    if candidates is None:
        gap, W = points[:, None] - means, whiteners
    else:
        gap, W = points[:, None] - means[candidates], whiteners[candidates]
    return whitened_norm_squared(gap, W).to(dtype)


def whitened_norm_squared(gap: Tensor, W: Tensor) -> Tensor:
    """Compute `|W gap|^2` for gaps (..., 2) and lower triangles (..., 3) from `whitening`."""
    first = gap[..., 0] * W[..., 0]
    second = gap[..., 0] * W[..., 1] + gap[..., 1] * W[..., 2]
    return first.square() + second.square()


def log_peak(covs: Tensor) -> Tensor:
    """Compute `-log(2 pi) - log det S / 2`, the log density of each Gaussian at its centre."""
    return whitening(covs)[1] - math.log(2 * math.pi)
