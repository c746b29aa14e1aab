"""Probabilities and uncertainty from Gaussian logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError

Readout = Literal["probit", "taylor", "sample"]

MAX_VALUES = 2**18
"""Logits in memory at a time, as long as one draw has no more."""


@dataclass(frozen=True)
class ClassMoments:
    """Class probabilities and uncertainty from Gaussian logits.

    Attributes:
        probs: E softmax(z), (b, c, ...).
        var: The variance of each probability.
        information: The mutual information of class and logits in nats, (b, ...): the epistemic part of the entropy.
    """

    probs: Tensor
    var: Tensor
    information: Tensor


def read_out(
    mean: Tensor,
    var: Tensor,
    covariance: Tensor | None = None,
    *,
    how: Readout = "sample",
    draws: int = 64,
    seed: int = 0,
) -> ClassMoments:
    """Compute class probabilities from logits z ~ N(mean, var), with classes along axis 1.

    - "sample": the mean over draws of the logits with common noise for all examples; the network is not run again.
    - "probit": softmax(mean / sqrt(1 + pi/8 var)) (MacKay 1992; for many classes applied to each logit minus the mean
      logit of the example, so that shifting all logits has no effect).
    - "taylor": softmax to second order, p_c + sum_j v_j d^2p_c/dz_j^2 / 2, negative values set to 0.

    For the last two, the variance is J Var(z) J^T with J the Jacobian of softmax at p, at most p (1 - p); the mutual
    information is to leading order sum_c Var(p_c) / (2 p_c) = tr((diag(p) - p p^T) Var(z)) / 2, at most the entropy.

    Args:
        mean: (b, c) or (b, c, ...).
        var: In the same shape.
        covariance: (b, c, c), if known: between the logits of an example.
        how: One of the three.
        draws: For "sample".
        seed: For "sample".
    """
    if how == "sample":
        return _by_draws(mean, var, covariance, draws, seed)
    if how == "probit":
        centred = mean - mean.mean(1, keepdim=True)
        probs = torch.softmax(centred * torch.rsqrt(1 + (math.pi / 8) * var), 1)
    elif how == "taylor":
        probs = _second_order(mean, var, covariance)
    else:
        raise UnknownNameError("readout", how, get_args(Readout))
    return ClassMoments(probs, *_first_order(probs, var, covariance))


def _second_order(mean: Tensor, var: Tensor, covariance: Tensor | None) -> Tensor:
    """Compute p_c + p_c ((S_cc - 2 (S p)_c) + 2 p^T S p - sum_j p_j S_jj) / 2 for logits with covariance S."""
    p = torch.softmax(mean, 1)
    product, spread = _products(p, var, covariance)
    change = 0.5 * p * (var - 2 * product + 2 * spread - (p * var).sum(1, keepdim=True))
    positive = (p + change).clamp_min(0)
    return positive / positive.sum(1, keepdim=True)


def _first_order(p: Tensor, var: Tensor, covariance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the variance of each probability, and the mutual information."""
    product, spread = _products(p, var, covariance)
    inside = (var - 2 * product + spread).clamp_min(0)
    information = 0.5 * (p * inside).sum(1)
    entropy = torch.special.entr(p).sum(1)
    return torch.minimum(p.square() * inside, p * (1 - p)), torch.minimum(information, entropy)


def _products(p: Tensor, var: Tensor, covariance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute S p and p^T S p."""
    product = p * var if covariance is None else (covariance @ p.unsqueeze(-1)).squeeze(-1)
    return product, (p * product).sum(1, keepdim=True)


def _by_draws(mean: Tensor, var: Tensor, covariance: Tensor | None, draws: int, seed: int) -> ClassMoments:
    """Average over antithetic pairs of draws, as many in memory at a time as `MAX_VALUES` allows.

    Classes are the first axis here, since softmax over a short last axis is 20 times slower.
    """
    generator = torch.Generator(mean.device).manual_seed(seed)
    logits = mean.movedim(1, 0).contiguous()
    spread = var.movedim(1, 0).sqrt() if covariance is None else _factor(covariance)
    centre = torch.softmax(logits, 0)  # deviations from it are summed without cancellation
    total, squares, entropy = torch.zeros_like(centre), torch.zeros_like(centre), torch.zeros_like(centre[0])
    pairs = math.ceil(draws / 2)
    step = max(1, MAX_VALUES // max(mean.numel(), 1))
    for start in range(0, pairs, step):
        noises = [
            torch.randn(mean.shape[1:], generator=generator, dtype=mean.dtype, device=mean.device)
            for _ in range(min(step, pairs - start))
        ]
        noise = torch.stack(noises, 1)  # (c, draws, ...)
        change = spread[:, None] * noise[:, :, None] if covariance is None else (spread @ noise).permute(1, 2, 0)
        for sign in (1, -1):
            p = torch.softmax(logits[:, None] + sign * change, 0)  # (c, draws, b, ...)
            entropy += torch.special.entr(p).sum((0, 1))
            deviation = p - centre[:, None]
            total += deviation.sum(1)
            squares += deviation.square().sum(1)
    shift = total / (2 * pairs)
    probs = centre + shift
    information = torch.special.entr(probs).sum(0) - entropy / (2 * pairs)
    variance = (squares / (2 * pairs) - shift.square()).clamp_min(0)
    probs, variance = (each.movedim(0, 1).contiguous() for each in (probs, variance))
    return ClassMoments(probs, variance, information.clamp_min(0))


def _factor(covariance: Tensor) -> Tensor:
    """Return a square root of each matrix, or NaN where it is not finite.

    Eigenvalues rather than Cholesky's factor, because a covariance of few directions is singular.
    """
    largest = covariance.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    scale = largest.clamp_min(torch.finfo(covariance.dtype).tiny)
    scaled = covariance / scale  # LAPACK fails on huge numbers
    finite = scaled.isfinite().all(-1).all(-1)[..., None, None]
    values, vectors = torch.linalg.eigh(torch.where(finite, scaled, 0.0))
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2) * scale.sqrt()
    return torch.where(finite, root, torch.nan)
