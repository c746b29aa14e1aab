"""First-order rules of elementwise functions: mean f(m), variance v f'(m)^2."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, mean_of
from pocketbayes.propagation.moments.arithmetic import product_variance
from pocketbayes.propagation.moments.table import NoRuleError, Rule, changeable, in_place, rule

PART_ENTRIES = 1 << 18
"""Entries per part when a function is evaluated in parts."""
Slope = Callable[..., Tensor]
"""f'(m), from m and the function's other arguments."""


def elementwise(function: Callable[..., Tensor], slope: Slope) -> Rule:
    """Return the rule of an elementwise function with a given derivative."""
    place = _place_of_inplace(function)

    def propagate(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
        if place is not None and len(args) > place:  # tracers pass keyword arguments by position
            args, kwargs = args[:place], {**kwargs, "inplace": args[place]}
        if kwargs.pop("inplace", False):
            return _changed(propagate, function)(input, *args, **kwargs)
        mean = function(input.loc, *args, **kwargs)
        if any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
            return Gaussian(mean, input.variance * slope(input.loc, *args, **kwargs).square())
        return Gaussian(mean, _first_order(input, lambda loc: slope(loc, *args, **kwargs)))

    return propagate


def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    """Return the position of `inplace` among the arguments after the input, or None."""
    named = getattr(F, getattr(function, "__name__", ""), None)
    if not inspect.isfunction(named):
        return None
    names = list(inspect.signature(named).parameters)[1:]
    return names.index("inplace") if "inplace" in names else None


def _first_order(input: Gaussian, slope: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the variance v f'(m)^2, in parts without gradients, to save memory for intermediates of f'."""
    loc, var = input.loc, input.variance
    whole = torch.compiler.is_compiling() or torch.is_grad_enabled()  # traces must not depend on the batch size
    if whole or (parts := loc.numel() // PART_ENTRIES) < 2:
        return var * slope(loc).square()
    result = torch.empty_like(loc)
    rows = -(-len(loc) // parts)
    for out, m, v in zip(*(tensor.split(rows) for tensor in (result, loc, var))):
        torch.mul(v, slope(m).square(), out=out)
    return result


def _changed(propagate: Rule, function: Callable[..., Any]) -> Callable[..., Gaussian]:
    return in_place(propagate, f"{getattr(function, '__name__', 'an activation')} in place")


def normal_density(x: Tensor) -> Tensor:
    """Compute phi(x), the standard normal density, at least 1e-35, since subnormal numbers are ten times slower."""
    return torch.exp((-0.5 * x * x).clamp_min(-80)) * (1 / math.sqrt(2 * math.pi))


def normal_cdf(x: Tensor) -> Tensor:
    """Compute Phi(x), the standard normal CDF, by erfc, since torch.special.ndtr loses the lower tail in float32."""
    return 0.5 * torch.erfc((-math.sqrt(0.5) * x).clamp_max(8.5))


def gelu_slope(x: Tensor, approximate: str = "none") -> Tensor:
    """Compute Phi(x) + x phi(x), or the derivative of its approximation by tanh."""
    if approximate == "none":
        return normal_cdf(x) + x * normal_density(x)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    tanh = torch.tanh(scale * (x + cubic * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh.square()) * scale * (1 + 3 * cubic * x.square())


def silu_slope(x: Tensor) -> Tensor:
    """Compute `s(x) (1 + x (1 - s(x)))` with s the logistic function."""
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))


def mish_slope(x: Tensor) -> Tensor:
    """Return the derivative of x tanh(softplus(x))."""
    tanh = torch.tanh(F.softplus(x))
    return tanh + x * torch.sigmoid(x) * (1 - tanh.square())


def inside(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """Return 1 between the bounds, 0 beyond."""
    above = None if low is None else x > low
    below = None if high is None else x < high
    if above is not None and below is not None:
        return (above & below).to(x.dtype)
    within = below if above is None else above
    return torch.ones_like(x) if within is None else within.to(x.dtype)


def _elu_slope(x: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(x > 0, 1.0, alpha * torch.exp(x.clamp(max=0)))


def _selu_slope(x: Tensor) -> Tensor:
    return 1.0507009873554805 * _elu_slope(x, 1.6732632423543772)


def _softplus_slope(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return torch.sigmoid(beta * x)


def _clamp_slope(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    return inside(x, min, max)


SLOPES: dict[str, Slope] = {
    "gelu": gelu_slope,
    "silu": silu_slope,
    "mish": mish_slope,
    "sigmoid": lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x)),
    "tanh": lambda x: 1 - torch.tanh(x).square(),
    "tanhshrink": lambda x: torch.tanh(x).square(),
    "softplus": _softplus_slope,
    "logsigmoid": lambda x: torch.sigmoid(-x),
    "softsign": lambda x: (1 + x.abs()).square().reciprocal(),
    "elu": _elu_slope,
    "celu": lambda x, alpha=1.0: torch.where(x > 0, 1.0, torch.exp(x.clamp(max=0) / alpha)),
    "selu": _selu_slope,
    "relu6": lambda x: inside(x, 0.0, 6.0),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: inside(x, min_val, max_val),
    "hardsigmoid": lambda x: inside(x, -3.0, 3.0) / 6,
    "hardswish": lambda x: torch.where(x >= 3, 1.0, inside(x, -3.0, 3.0) * (x / 3 + 0.5)),
    "leaky_relu": lambda x, negative_slope=0.01: torch.where(x > 0, 1.0, negative_slope),
    "clamp": _clamp_slope,
    "clip": _clamp_slope,
    "clamp_min": lambda x, min: inside(x, min, None),
    "clamp_max": lambda x, max: inside(x, None, max),
    "exp": torch.exp,
    "expm1": torch.exp,
    "log": torch.reciprocal,
    "log1p": lambda x: torch.reciprocal(1 + x),
    "sqrt": lambda x: 0.5 * torch.rsqrt(x),
    "rsqrt": lambda x: -0.5 * torch.rsqrt(x) / x,
    "reciprocal": lambda x: -torch.reciprocal(x).square(),
    "square": lambda x: 2 * x,
    "abs": torch.sign,
    "sin": torch.cos,
    "cos": lambda x: -torch.sin(x),
    "erf": lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x.square()),
}
"""f' by the name of f, with autograd's choice at kinks."""

for _name, _slope in SLOPES.items():
    _function = getattr(torch, _name, None) or getattr(F, _name)
    _rule = elementwise(_function, _slope)
    rule(_name)(_rule)
    rule(f"{_name}_")(_changed(_rule, _function))


def where_positive(var: Tensor, mean: Tensor) -> Tensor:
    """Return the variance where the mean is positive, else 0, four times faster than multiplying by a mask."""
    result: Tensor = torch.ops.aten.threshold_backward(var, mean, 0)
    return result


@rule("relu")
def relu(input: Gaussian, inplace: bool = False) -> Gaussian:
    """Apply ReLU: the variance passes where the mean is positive."""
    if inplace:
        return relu_(input)
    return Gaussian(input.loc.relu(), where_positive(input.variance, input.loc))


@rule("relu_")
def relu_(input: Gaussian) -> Gaussian:
    """Apply ReLU in place without a copy of the means, as networks with `inplace=True` expect."""
    changeable(input, "relu_")
    input.variance.copy_(where_positive(input.variance, input.loc.clone() if input.loc.requires_grad else input.loc))
    input.loc.relu_()
    return input


@rule("prelu")
def prelu(input: Any, weight: Any) -> Gaussian:
    """Apply PReLU: mean `w m` below 0, where the variance is that of a product."""
    if not isinstance(input, Gaussian):
        raise NoRuleError("moments", "prelu with a random slope on an input that is not random")
    slope = mean_of(weight)
    shape = (-1, *(1,) * (input.ndim - 2)) if slope.numel() > 1 and input.ndim > 2 else slope.shape
    random = isinstance(weight, Gaussian)
    factor = Gaussian(slope.view(shape), weight.variance.view(shape)) if random else slope.view(shape)
    below = product_variance(torch.mul, input, factor)
    return Gaussian(F.prelu(input.loc, slope), torch.where(input.loc > 0, input.variance, below))


@rule("pow", "__pow__", ops=(operator.pow,))
def power(input: Any, exponent: Any) -> Gaussian:
    """Raise to a power: variance `(k m^(k-1))^2 v`; either exponent or base must not be random."""
    if isinstance(exponent, Gaussian):
        return rpower(exponent, input)
    slope = exponent * torch.pow(input.loc, exponent - 1)
    return Gaussian(torch.pow(input.loc, exponent), input.variance * slope.square())


@rule("__rpow__")
def rpower(input: Gaussian, base: Any) -> Gaussian:
    """Compute base^x: variance `(log(base) base^m)^2 v`."""
    if isinstance(base, Gaussian):
        raise NoRuleError("moments", "pow of two random tensors")
    mean = torch.pow(base, input.loc)
    log = torch.log(base) if isinstance(base, Tensor) else math.log(base)
    return Gaussian(mean, input.variance * (log * mean).square())


def dropout(noise: Callable[..., Tensor]) -> Rule:
    """Return the rule of a kind of dropout, whose drawn mask is a constant factor."""

    def propagate(input: Gaussian, p: float = 0.5, training: bool = True, inplace: bool = False) -> Gaussian:
        if not training or p == 0:
            return input
        kept = noise(torch.ones_like(input.loc), p, training)
        result = Gaussian(input.loc * kept, input.variance * kept.square())
        return in_place(lambda _: result, "dropout")(input) if inplace else result

    return propagate


for _name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"):
    _noise = getattr(F, _name, None) or getattr(torch, _name)
    rule(_name)(dropout(_noise))
