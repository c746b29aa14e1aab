"""Importance scores of Gaussian weights, by which sparse posteriors choose what to remove."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice

Score = Literal["magnitude", "snr", "abs-mean", "abs-snr", "exp-mean", "exp-snr"]

_SMALL = 1e-4
"""Below this `l std` the variance of exp(l|w|) would cancel; its series is exact to 1e-8."""


def removal_score(name: str, mean: Tensor, std: Tensor, scale: float = 1.0, *, log: bool = False) -> Tensor:
    """Return the score of each weight w ~ N(mean, std^2); the lowest are removed first (Li et al. 2024, six criteria).

    magnitude: |mean|. snr: |mean| / std. abs-mean: E|w|. abs-snr: E|w| / sqrt(Var|w|). exp-mean: E exp(l|w|). exp-snr:
    its ratio to the square root of Var exp(l|w|).

    All are finite for every std >= 0: an overflowing ratio becomes the type's largest number. snr and abs-snr remove
    the same weights, since both increase with |mean| / std.

    Args:
        name: The score.
        mean: The means.
        std: The stds, possibly 0.
        scale: l of the exponential scores.
        log: Return the logarithm, which keeps the order of scores that overflow or underflow.
    """
    check_choice("removal score", name, _SCORES)
    # In single precision the std of |w| is lost to rounding if |mean| > 3000 std.
    size, width = mean.detach().double().abs(), std.detach().double()
    value, is_log = _SCORES[name](size, width, scale)
    if is_log != log:
        value = value.log() if log else value.exp()
    top = torch.finfo(mean.dtype).max
    return (value if log else value.clamp(max=top)).to(mean.dtype)


def _magnitude(size: Tensor, std: Tensor, scale: float) -> tuple[Tensor, bool]:
    return size, False


def _snr(size: Tensor, std: Tensor, scale: float) -> tuple[Tensor, bool]:
    return size.log() - std.clamp(min=torch.finfo(std.dtype).tiny).log(), True


def _abs_mean(size: Tensor, std: Tensor, scale: float) -> tuple[Tensor, bool]:
    """Compute E|w| = |mean| + std d(|mean|/std)."""
    return size + std * _excess(_ratio(size, std)), False


def _abs_snr(size: Tensor, std: Tensor, scale: float) -> tuple[Tensor, bool]:
    """Return (r + d) / sqrt(1 - 2 r d - d^2) with r = |mean|/std and d = E|w|/std - r, which avoids cancellation."""
    ratio = _ratio(size, std)
    excess = _excess(ratio)
    log_mean = torch.where(excess > 0, (ratio + excess).log(), _snr(size, std, scale)[0])
    return log_mean - 0.5 * _variance(ratio, excess).log(), True


def _exp_mean(size: Tensor, std: Tensor, scale: float) -> tuple[Tensor, bool]:
    """Compute log E exp(l|w|) = (l std)^2 / 2 + l |mean| + log(1 + q(l std))."""
    width = scale * std
    return 0.5 * width.square() + scale * size + _tilt(_ratio(size, std), width, scale * size).log1p(), True


def _exp_snr(size: Tensor, std: Tensor, scale: float) -> tuple[Tensor, bool]:
    """Compute -1/2 log(exp(g) - 1) with g = log E exp(2l|w|) - 2 log E exp(l|w|)."""
    ratio, width = _ratio(size, std), scale * std
    one, two = (_tilt(ratio, k * width, k * scale * size).log1p() for k in (1, 2))
    growth = width.square() + two - 2 * one
    # log(exp(g) - 1) = g + log(1 - exp(-g)); for small g it is log(g) + g / 2, and g = a^2 k2 + a^3 k3, with a = l std
    # and k the cumulants of |w| / std.
    excess = _excess(ratio)
    log_series = _variance(ratio, excess).log() + (width * _skewness(ratio, excess)).log1p()
    log_series = log_series + 2 * width.clamp(min=torch.finfo(width.dtype).tiny).log()
    log_variance = torch.where(
        width < _SMALL, log_series + 0.5 * log_series.exp(), growth + (-torch.expm1(-growth)).log()
    )
    return -0.5 * log_variance, True


_SCORES: dict[str, Callable[[Tensor, Tensor, float], tuple[Tensor, bool]]] = {
    "magnitude": _magnitude,
    "snr": _snr,
    "abs-mean": _abs_mean,
    "abs-snr": _abs_snr,
    "exp-mean": _exp_mean,
    "exp-snr": _exp_snr,
}
"""Functions of |mean|, std and l in double precision that return a score and whether it is its logarithm."""

SCORES: tuple[Score, ...] = get_args(Score)


def _ratio(size: Tensor, std: Tensor) -> Tensor:
    """Compute |mean| / std, bounded so that its cube is finite."""
    return (size / std.clamp(min=torch.finfo(std.dtype).tiny)).clamp(max=1e100)


def _below(bound: Tensor) -> Tensor:
    """Compute Phi, the probability of a standard normal number below the bound."""
    probability: Tensor = torch.special.ndtr(bound)
    return probability


def _density(ratio: Tensor) -> Tensor:
    """Compute phi, the standard normal density."""
    return torch.exp(-0.5 * ratio.square()) / math.sqrt(2 * math.pi)


def _excess(ratio: Tensor) -> Tensor:
    """Compute d(r) = E|z + r| - r = 2 (phi(r) - r Phi(-r)) for a standard normal z and r >= 0."""
    return (2 * (_density(ratio) - ratio * _below(-ratio))).clamp(min=0)


def _variance(ratio: Tensor, excess: Tensor) -> Tensor:
    """Compute Var|z + r| = 1 + r^2 - (r + d)^2."""
    return 1 - 2 * ratio * excess - excess.square()


def _skewness(ratio: Tensor, excess: Tensor) -> Tensor:
    """Return the third cumulant of |z + r| over its second."""
    third = 2 * (ratio.square() + 2) * _density(ratio) - 2 * (ratio**3 + 3 * ratio) * _below(-ratio)
    third = third - 3 * excess + 3 * ratio.square() * excess + 6 * ratio * excess.square() + 2 * excess**3
    return third / _variance(ratio, excess)


def _tilt(ratio: Tensor, width: Tensor, shift: Tensor) -> Tensor:
    """Compute q(a) = Phi(a - r) exp(-2 a r) - Phi(-a - r), with a = l std and a r = l |mean|."""
    return _below(width - ratio) * torch.exp(-2 * shift) - _below(-width - ratio)
