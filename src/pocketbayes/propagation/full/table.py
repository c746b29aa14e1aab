"""The rule table of full-covariance propagation; operations without a rule are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from pocketbayes.posteriors.gaussian import Correlated, Gaussian, Op, RuleTable
from pocketbayes.propagation.moments.table import NoRuleError, Rule, handles, operation_name

LIMIT = 1 << 30
"""Largest covariance in bytes; a pass holds several of them, a training step more."""

R = TypeVar("R", bound=Rule)

RULES: dict[Op, Rule] = {}


class NoFullRuleError(NoRuleError):
    """An operation without a rule for full covariances."""

    wayout = "use propagation='moments', 'linear' or 'sample'"


class TooLargeError(NoFullRuleError):
    """A covariance that would not fit into memory."""

    wayout = "take fewer examples at once (batch_size=, or accumulate= in training), or propagation='moments'"


class FullMoments(RuleTable):
    """Mean and full covariance of every activation per example, without sampling (VDP).

    Linear operations are exact in the first two moments, others are first-order. The covariance of d activations takes
    d^2 numbers per example, so this is for small chains of layers. Operations without a rule are refused, among them
    sums of two random tensors, since covariances between branches are not stored.
    """

    name = "moments-full"
    draws = False

    def noisy(self, x: Tensor, var: float) -> Correlated:
        """Return an input with independent noise, one block per entry."""
        blocks = torch.full((len(x), x[0].numel(), 1, 1), var, dtype=x.dtype, device=x.device)
        return Correlated(x, blocks, rules=self)

    def covers(self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], weight: Tensor) -> bool:
        """Return whether the operation has a rule."""
        return op in RULES

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply the rule; its outputs keep using this table."""
        rule = RULES.get(op)
        if rule is None:
            raise refused(operation_name(op))
        result = rule(*args, **kwargs)
        if isinstance(result, Gaussian):
            result.rules = self
        return result


def rule(*names: str) -> Callable[[R], R]:
    """Register the decorated rule for every function of these names, as in the moments table."""

    def register(function: R) -> R:
        RULES.update(dict.fromkeys(handles(*names), function))
        return function

    return register


def refused(operation: str) -> NoFullRuleError:
    """Build the error for an operation without a rule."""
    return NoFullRuleError(FullMoments.name, operation)


def activation(value: Any, operation: str) -> Correlated:
    """Return the argument if it is a random activation; reject random weights outside linear layers."""
    if not isinstance(value, Correlated):
        raise refused(f"{operation} of a random weight")
    return value


def check_size(like: Tensor, *shape: int) -> None:
    """Reject a tensor of this shape before it is made, if it would be too large."""
    size = torch.Size(shape).numel() * like.element_size()
    if size > LIMIT:
        text = f"a covariance of {size / 2**30:.1f} GiB, more than {LIMIT / 2**30:.0f} GiB, for {shape[0]} examples"
        raise TooLargeError(FullMoments.name, text)


def whole_channels(x: Correlated) -> Tensor:
    """Return the blocks of images (b, c, ...) as whole channels, joining smaller blocks."""
    if x.shape[1] % x.blocks.shape[1] == 0:
        return x.blocks
    check_size(x.loc, len(x), x.loc[0].numel() ** 2)
    return x.covariance.unsqueeze(1)


def scaled(x: Correlated, mean: Tensor, factor: Tensor) -> Correlated:
    """Compute Cov(f x) = f Cov(x) f^T for a factor per entry, in the shape of the mean."""
    column = factor.expand(mean.shape).reshape(x.blocks.shape[:3])
    return Correlated(mean, x.blocks * column.unsqueeze(-1) * column.unsqueeze(-2))
