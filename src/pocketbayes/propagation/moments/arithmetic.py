"""Sums and products of random tensors with independent entries."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, mean_of
from pocketbayes.propagation.linear_ops import LINEAR_OPS, LinearCall
from pocketbayes.propagation.moments.table import RULES, NoRuleError, Rule, changeable, in_place, rule

# -- linear layers ----------------------------------------------------------------------------------------------------


def linear(op: Callable[..., Tensor]) -> Rule:
    """Return the rule of an operation that is linear in its input and in its weight.

    Mean `op(m, M) + b`, variance `op(v, V + M^2) + op(m^2, V) + v_b`.
    """

    def propagate(*args: Any, **kwargs: Any) -> Gaussian:
        call = LinearCall.read(op, args, kwargs)
        mean = call.run(mean_of(call.input), mean_of(call.weight), mean_of(call.bias))
        bias_var = call.bias.variance if isinstance(call.bias, Gaussian) else None
        return Gaussian(mean, product_variance(call.run, call.input, call.weight, bias_var))

    return propagate


def product_variance(run: Callable[..., Tensor], one: Any, two: Any, *extra: Tensor | None) -> Tensor:
    """Return the variance of a sum of products: `m1^2 v2 + v1 m2^2 + v1 v2`, summed as `run` sums products.

    Args:
        run: (one, two, *extra) -> sum of products + extra.
        one: A factor, random or not.
        two: The other factor.
        *extra: The variance of what `run` adds, or None.
    """
    if isinstance(two, Gaussian):
        mean = mean_of(one)
        var = run(mean * mean, two.variance, *extra)
        if isinstance(one, Gaussian):
            var = var + run(one.variance, torch.addcmul(two.variance, two.loc, two.loc), *(None for _ in extra))
        return var
    if isinstance(one, Gaussian):
        return run(one.variance, two * two, *extra)
    return run(torch.zeros_like(one), two, *extra)


RULES.update({op: linear(op) for op in LINEAR_OPS})


# -- products ---------------------------------------------------------------------------------------------------------


@rule("mul", "multiply", "__mul__", "__rmul__")
def mul(input: Any, other: Any) -> Gaussian:
    """Multiply: mean `m1 m2`, variance `m1^2 v2 + v1 m2^2 + v1 v2`; of a square `(2 m)^2 v`."""
    if input is other:
        return Gaussian(input.loc.square(), input.variance * (4 * input.loc.square()))
    return Gaussian(mean_of(input) * mean_of(other), product_variance(torch.mul, input, other))


@rule("div", "divide", "true_divide", "__truediv__", "truediv")
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Gaussian:
    """Divide: mean `m1 / m2`, variance `(v1 + (m1 / m2)^2 v2) / m2^2`, exact where the divisor is not random."""
    if rounding_mode is not None:
        raise NoRuleError("moments", "div with a rounding mode")
    divisor = mean_of(other)
    mean = mean_of(input) / divisor
    if not isinstance(other, Gaussian):
        return Gaussian(mean, input.variance / (divisor * divisor))
    var = mean.square() * other.variance
    if isinstance(input, Gaussian):
        var = var + input.variance
    return Gaussian(mean, var / divisor.square())


@rule("__rdiv__", "__rtruediv__")
def rdiv(input: Gaussian, other: Any) -> Gaussian:
    """Divide with swapped operands."""
    return div(other, input)


@rule("matmul", "bmm", "mm", "mv", "dot", "__matmul__")
def matmul(input: Any, other: Any) -> Gaussian:
    """Multiply matrices: mean `m1 m2`, variance `m1^2 v2 + v1 m2^2 + v1 v2`."""
    return Gaussian(torch.matmul(mean_of(input), mean_of(other)), product_variance(torch.matmul, input, other))


@rule("__rmatmul__")
def rmatmul(input: Any, other: Any) -> Gaussian:
    """Multiply with swapped operands."""
    return matmul(other, input)


@rule("einsum")
def einsum(equation: str, *operands: Any) -> Gaussian:
    """Sum products of two tensors, or rearrange one."""
    factors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if len(factors) > 2:
        raise NoRuleError("moments", "einsum of more than two tensors")
    means = [mean_of(factor) for factor in factors]
    mean = torch.einsum(equation, *means)
    if len(factors) == 1:
        return Gaussian(mean, torch.einsum(equation, factors[0].variance))

    def run(one: Tensor, two: Tensor) -> Tensor:
        return torch.einsum(equation, one, two)

    return Gaussian(mean, product_variance(run, *factors))


@rule("addmm", "baddbmm")
def addmm(input: Any, one: Any, two: Any, *, beta: float = 1, alpha: float = 1) -> Gaussian:
    """Compute beta input + alpha (one @ two)."""
    product = matmul(one, two) if isinstance(one, Gaussian) or isinstance(two, Gaussian) else torch.matmul(one, two)
    return add(scaled(input, beta), scaled(product, alpha))


@rule("addcmul")
def addcmul(input: Any, one: Any, two: Any, *, value: float = 1) -> Gaussian:
    """Compute input + value * one * two."""
    product = mul(one, two) if isinstance(one, Gaussian) or isinstance(two, Gaussian) else one * two
    return add(input, product, alpha=value)


def scaled(x: Any, factor: float) -> Any:
    """Compute factor * x."""
    return Gaussian(x.loc * factor, x.variance * factor**2) if isinstance(x, Gaussian) else x * factor


# -- sums -------------------------------------------------------------------------------------------------------------


@rule("add", "__add__", "__radd__")
def add(input: Any, other: Any, *, alpha: float = 1) -> Gaussian:
    """Add means and variances, ignoring covariances, except that x + x is 2 x."""
    if input is other:
        return scaled(input, 1 + alpha)  # type: ignore[no-any-return]
    mean = mean_of(input) + (mean_of(other) if alpha == 1 else alpha * mean_of(other))
    return Gaussian(mean, _sum_of_variances(input, other, alpha, mean))


def _sum_of_variances(input: Any, other: Any, alpha: float, mean: Tensor) -> Tensor:
    if isinstance(input, Gaussian) and isinstance(other, Gaussian):
        return torch.add(input.variance, other.variance, alpha=alpha**2)
    var = input.variance if isinstance(input, Gaussian) else other.variance * alpha**2
    # Copy, since an in-place operation on the sum must not change the variance of the term.
    return var.clone() if var.shape == mean.shape else var.expand(mean.shape).contiguous()


@rule("sub", "subtract", "__sub__")
def sub(input: Any, other: Any, *, alpha: float = 1) -> Gaussian:
    """Subtract means and add variances."""
    return add(input, other, alpha=-alpha)


@rule("rsub", "__rsub__")
def rsub(input: Any, other: Any, *, alpha: float = 1) -> Gaussian:
    """Subtract with swapped operands."""
    return sub(other, scaled(input, alpha))


@rule("neg", "negative", "__neg__")
def neg(input: Gaussian) -> Gaussian:
    """Negate the mean and keep the variance."""
    return Gaussian(-input.loc, input.variance.clone())


@rule("sum")
def sum_(input: Gaussian, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Gaussian:
    """Sum means and variances."""
    return Gaussian(
        torch.sum(input.loc, dim, keepdim, dtype=dtype), torch.sum(input.variance, dim, keepdim, dtype=dtype)
    )


@rule("mean")
def mean_(input: Gaussian, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Gaussian:
    """Average the means, with variance `mean(v) / n`."""
    mean = torch.mean(input.loc, dim, keepdim, dtype=dtype)
    count = input.loc.numel() // max(mean.numel(), 1)
    return Gaussian(mean, torch.mean(input.variance, dim, keepdim, dtype=dtype) / count)


# -- in place ---------------------------------------------------------------------------------------------------------


@rule("add_", "__iadd__", ops=(operator.iadd,))
def add_(x: Tensor, other: Any, *, alpha: float = 1) -> Gaussian:
    """Add in place without a copy, as in residual sums; nothing that autograd saved changes."""
    target = changeable(x, "add_")
    if other is x:
        return _mul_(x, 1 + alpha)
    target.loc.add_(mean_of(other), alpha=alpha)
    if isinstance(other, Gaussian):
        target.variance.add_(other.variance, alpha=alpha**2)
    return target


@rule("sub_", "__isub__", ops=(operator.isub,))
def sub_(x: Tensor, other: Any, *, alpha: float = 1) -> Gaussian:
    """Subtract in place."""
    return add_(x, other, alpha=-alpha)


_mul_ = in_place(mul, "mul_")
rule("mul_", "__imul__", ops=(operator.imul,))(_mul_)
rule("div_", "__itruediv__", "__idiv__", ops=(operator.itruediv,))(in_place(div, "div_"))
