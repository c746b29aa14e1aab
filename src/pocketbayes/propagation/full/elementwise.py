"""Elementwise functions and softmax to first order: covariance J S J^T."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Correlated, Gaussian
from pocketbayes.propagation.full.table import RULES, activation, refused, scaled
from pocketbayes.propagation.moments.activations import SLOPES, Slope, dropout
from pocketbayes.propagation.moments.normalisation import batch_norm as diagonal_batch_norm
from pocketbayes.propagation.moments.table import Rule, rule


def elementwise(function: Callable[..., Tensor], slope: Slope) -> Rule:
    """Return the rule of an elementwise function: Cov = f'(m_i) S_ij f'(m_j)."""

    def propagate(input: Any, *args: Any, **kwargs: Any) -> Correlated:
        in_place = kwargs.pop("inplace", False)
        x = activation(input, getattr(function, "__name__", "an activation"))
        result = scaled(x, function(x.loc, *args, **kwargs), slope(x.loc, *args, **kwargs))
        return _overwrite(x, result) if in_place else result

    return propagate


def _overwrite(x: Correlated, result: Correlated) -> Correlated:
    x.loc, x._var, x.blocks = result.loc, result.variance, result.blocks
    return x


def _in_place(propagate: Rule) -> Rule:
    return lambda input, *args, **kwargs: _overwrite(input, propagate(input, *args, **kwargs))


def _relu_slope(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


for _name, _slope in {**SLOPES, "relu": _relu_slope}.items():
    _rule = elementwise(getattr(torch, _name, None) or getattr(F, _name), _slope)
    rule(_name, rules=RULES)(_rule)
    rule(f"{_name}_", rules=RULES)(_in_place(_rule))


@rule("mul", "__mul__", "__rmul__", rules=RULES)
def mul(input: Any, other: Any) -> Correlated:
    """Compute c x with covariance c S c^T."""
    x, factor = (input, other) if isinstance(input, Correlated) else (other, input)
    if isinstance(factor, Gaussian):
        raise refused("the product of two random tensors")
    factor = torch.as_tensor(factor, dtype=x.loc.dtype, device=x.loc.device)
    mean = x.loc * factor
    if mean.shape != x.shape:
        raise refused("a product that changes the shape")
    return scaled(activation(x, "mul"), mean, factor)


@rule("div", "__truediv__", rules=RULES)
def div(input: Any, other: Any) -> Correlated:
    """Compute x / c."""
    if isinstance(other, Gaussian):
        raise refused("a random divisor")
    return mul(input, 1 / other)


@rule("add", "__add__", "__radd__", rules=RULES)
def add(input: Any, other: Any, *, alpha: float = 1) -> Correlated:
    """Compute x + c with unchanged covariance."""
    if isinstance(input, Gaussian) and isinstance(other, Gaussian):
        raise refused("the sum of two random tensors")
    x, mean = (input, input.loc + alpha * other) if isinstance(input, Gaussian) else (other, input + alpha * other.loc)
    if mean.shape != x.shape:
        raise refused("a sum that changes the shape")
    factor = x.loc.new_tensor(1.0 if isinstance(input, Gaussian) else alpha)
    return scaled(activation(x, "add"), mean, factor)


@rule("sub", "__sub__", rules=RULES)
def sub(input: Any, other: Any, *, alpha: float = 1) -> Correlated:
    """Compute x - c."""
    return add(input, other, alpha=-alpha)


@rule("rsub", "__rsub__", rules=RULES)
def rsub(input: Any, other: Any) -> Correlated:
    """Compute c - x."""
    return add(other, input, alpha=-1)


@rule("batch_norm", rules=RULES)
def batch_norm(input: Any, *args: Any, **kwargs: Any) -> Correlated:
    """Scale every channel by the statistics of the means, as in diagonal propagation."""
    x = activation(input, "batch_norm")
    unit = diagonal_batch_norm(Gaussian(x.loc, torch.ones_like(x.loc)), *args, **kwargs)
    return scaled(x, unit.loc, unit.variance.sqrt())


for _name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"):
    _drop = dropout(getattr(F, _name, None) or getattr(torch, _name))

    def _dropped(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, _drop: Rule = _drop) -> Any:
        x = activation(input, "dropout")
        kept = _drop(Gaussian(torch.ones_like(x.loc), torch.zeros_like(x.loc)), p, training).loc
        return scaled(x, x.loc * kept, kept)

    rule(_name, rules=RULES)(_dropped)


def _softmax_like(function: Callable[..., Tensor], input: Any, dim: Any, jacobian: Callable[[Tensor], Tensor]) -> Any:
    x = activation(input, function.__name__)
    if x.ndim != 2 or dim not in (1, -1):
        raise refused(f"{function.__name__} over axis {dim} of shape {tuple(x.shape)}")
    slope = jacobian(torch.softmax(x.loc, 1))
    return Correlated(function(x.loc, 1), (slope @ x.covariance @ slope.mT).unsqueeze(1))


@rule("softmax", rules=RULES)
def softmax(input: Any, dim: Any = None, *_: Any, **__: Any) -> Any:
    """Apply softmax, with J = diag(p) - p p^T."""
    return _softmax_like(torch.softmax, input, dim, lambda p: torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1))


@rule("log_softmax", rules=RULES)
def log_softmax(input: Any, dim: Any = None, *_: Any, **__: Any) -> Any:
    """Apply log-softmax, with J = I - 1 p^T."""
    return _softmax_like(
        torch.log_softmax, input, dim, lambda p: torch.eye(p.shape[1], dtype=p.dtype, device=p.device) - p.unsqueeze(1)
    )
