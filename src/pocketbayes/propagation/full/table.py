"""The rule table of full-covariance propagation; operations without a rule are refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pocketbayes.posteriors.gaussian import Correlated, Op
from pocketbayes.propagation.moments.table import MomentRules, NoRuleError, Rule

MAX_BYTES = 1 << 30
"""Largest covariance in bytes; a pass holds several of them, a training step more."""

NAME = "moments-full"

RULES: dict[Op, Rule] = {}


class NoFullRuleError(NoRuleError):
    """An operation without a rule for full covariances."""

    wayout = "use propagation='moments', 'linear' or 'sample'"


class TooLargeError(NoFullRuleError):
    """A covariance that would not fit into memory."""

    wayout = "take fewer examples at once (batch_size=, or accumulate= in training), or propagation='moments'"


class FullMoments(MomentRules):
    """Mean and full covariance of every activation per example, without sampling (VDP).

    Linear operations are exact in the first two moments, others are first-order. The covariance of d activations takes
    d^2 numbers per example, so this is for small chains of layers. Operations without a rule are refused, among them
    sums of two random tensors, since covariances between branches are not stored.
    """

    error = NoFullRuleError

    def noisy(self, x: Tensor, var: float) -> Correlated:
        """Return an input with independent noise, one block per entry."""
        blocks = torch.full((len(x), x[0].numel(), 1, 1), var, dtype=x.dtype, device=x.device)
        return Correlated(x, blocks, rules=self)


def refused(operation: str) -> NoFullRuleError:
    """Build the error for an operation without a rule."""
    return NoFullRuleError(NAME, operation)


def activation(value: Any, operation: str) -> Correlated:
    """Return the argument if it is a random activation; reject random weights outside linear layers."""
    if not isinstance(value, Correlated):
        raise refused(f"{operation} of a random weight")
    return value


def check_size(like: Tensor, *shape: int) -> None:
    """Reject a tensor of this shape before it is made, if it would be too large."""
    size = torch.Size(shape).numel() * like.element_size()
    if size > MAX_BYTES:
        text = f"a covariance of {size / 2**30:.1f} GiB, more than {MAX_BYTES / 2**30:.0f} GiB, for {shape[0]} examples"
        raise TooLargeError(NAME, text)


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
