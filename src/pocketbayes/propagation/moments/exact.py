"""Activations with exact mean and variance under a Gaussian input: ReLU, leaky ReLU, GELU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, Op
from pocketbayes.propagation.moments.activations import gelu_slope, normal_cdf, normal_density
from pocketbayes.propagation.moments.table import NoRuleError, Rule, in_place, rule

EXACT: dict[Op, Rule] = {}


def relu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of `max(x, 0)`, and `P(x > 0)`, for `x ~ N(mean, var)`.

    With z = m / s and Q = 1 - Phi: mean `s (z Phi + phi)`, variance `v (Phi + z^2 Phi Q + z phi (Q - Phi) - phi^2)`,
    which avoids differences of large squares and is accurate in single precision.
    """
    std = (var + torch.finfo(var.dtype).tiny ** 0.5).sqrt()  # at std 0 only the sign of the mean matters
    z = (mean / std).clamp(-9, 9)  # beyond 9 the probabilities are 0 or 1
    below, above, density = normal_cdf(-z), normal_cdf(z), normal_density(z)
    unit = above + z.square() * above * below + z * density * (below - above) - density.square()
    return mean * above + std * density, var * unit.clamp_min(0), above


@rule("relu", rules=EXACT)
def relu(input: Gaussian, inplace: bool = False) -> Gaussian:
    """Apply ReLU with the moments of a rectified Gaussian."""
    if inplace:
        return relu_(input)
    mean, var, _ = relu_moments(input.loc, input.variance)
    return Gaussian(mean, var)


@rule("leaky_relu", rules=EXACT)
def leaky_relu(input: Gaussian, negative_slope: float = 0.01, inplace: bool = False) -> Gaussian:
    """Apply leaky ReLU, `a x + (1 - a) relu(x)`, with `Cov(x, relu(x)) = v P(x > 0)`."""
    if inplace:
        return leaky_relu_(input, negative_slope)
    mean, var, positive = relu_moments(input.loc, input.variance)
    a, b = negative_slope, 1 - negative_slope
    return Gaussian(a * input.loc + b * mean, b**2 * var + input.variance * (a**2 + 2 * a * b * positive))


_LEGENDRE = (
    (0.013046735741414, 0.033335672154344),
    (0.067468316655508, 0.074725674575290),
    (0.160295215850488, 0.109543181257991),
    (0.283302302935376, 0.134633359654998),
    (0.425562830509184, 0.147762112357376),
)
"""Half of the Gauss-Legendre nodes and weights on [0, 1]; ten points have an error of 1e-9."""


class _OwensT(torch.autograd.Function):
    """T(h, a) = 1 / (2 pi) int_0^a exp(-h^2 (1 + x^2) / 2) / (1 + x^2) dx for 0 <= a <= 1, with its derivatives."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(h, a)
        exponent = -0.5 * h.square()
        total = torch.zeros_like(h)
        for node, weight in _LEGENDRE:
            for x in (node, 1 - node):
                widened = 1 + (a * x).square()
                total += weight * torch.exp(exponent * widened) / widened
        return total * a / (2 * math.pi)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        h, a = ctx.saved_tensors
        by_h = -normal_density(h) * (normal_cdf(a * h) - 0.5)
        widened = 1 + a.square()
        by_a = torch.exp(-0.5 * h.square() * widened) / (2 * math.pi * widened)
        return grads[0] * by_h, grads[0] * by_a


def owens_t(h: Tensor, a: Tensor) -> Tensor:
    """Return Owen's T function for 0 <= a <= 1."""
    return _OwensT.apply(h, a)  # type: ignore[no-any-return]


def gelu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of `x Phi(x)` for `x ~ N(mean, var)`.

    By Stein's lemma, with c = 1 + v, A = E Phi^2, B = E Phi phi, C = E phi^2 and D = E x Phi phi = (m B + v C) / c: E
    x^2 Phi^2 = (m^2 + v) A + 2 m v B + 2 v D. A = Phi(h) - 2 T(h, 1 / sqrt(1 + 2 v)) at h = m / sqrt(c), T being Owen's
    function. Where the variance is small compared with the squared mean this would be rounding noise, and `v f'^2 + v^2
    (f''^2 / 2 + f' f''')` is used.
    """
    scale = torch.rsqrt(1 + var)
    h = mean * scale
    cumulative, density = normal_cdf(h), normal_density(h)
    first = mean * cumulative + var * scale * density
    both = cumulative - 2 * owens_t(h, torch.rsqrt(1 + 2 * var))
    cross = scale * density * normal_cdf(h * torch.rsqrt(1 + 2 * var))
    wide = torch.rsqrt(0.5 + var)
    squared = wide * normal_density(mean * wide) / (2 * math.sqrt(math.pi))
    tilted = (mean * cross + var * squared) * scale.square()
    second = (mean.square() + var) * both + 2 * mean * var * cross + 2 * var * tilted
    slope, point = gelu_slope(mean), normal_density(mean)
    curve, third = point * (2 - mean.square()), point * mean * (mean.square() - 4)
    small = var * slope.square() + var.square() * (0.5 * curve.square() + slope * third)
    use_small = var < 1e-3 * (1 + mean.square())
    return first, torch.where(use_small, small, second - first.square()).clamp_min(0)


@rule("gelu", rules=EXACT)
def gelu(input: Gaussian, approximate: str = "none") -> Gaussian:
    """Apply exact GELU."""
    if approximate != "none":
        raise NoRuleError("moments-exact", f"gelu with approximate={approximate!r}")
    return Gaussian(*gelu_moments(input.loc, input.variance))


relu_ = in_place(relu, "relu_")
leaky_relu_ = in_place(leaky_relu, "leaky_relu_")
rule("relu_", rules=EXACT)(relu_)
rule("leaky_relu_", rules=EXACT)(leaky_relu_)
