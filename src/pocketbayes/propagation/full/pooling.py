"""Pooling and shapes, applied to the rows and columns of the covariance as to the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Correlated
from pocketbayes.propagation.full.table import RULES, activation, refused, whole_channels
from pocketbayes.propagation.moments.shape import register_hook
from pocketbayes.propagation.moments.table import Rule, handles, rule


def by_channel(op: Callable[..., Tensor]) -> Rule:
    """Return the rule of a linear operation A that is the same for every channel: `Cov = A S A^T`."""

    def propagate(input: Any, *args: Any, **kwargs: Any) -> Correlated:
        x = activation(input, op.__name__)
        blocks = whole_channels(x)
        examples, count = blocks.shape[:2]

        def run(rows: Tensor) -> Tensor:
            images = rows.reshape(examples * count * rows.shape[2], -1, *x.shape[2:])
            return op(images, *args, **kwargs).reshape(examples, count, rows.shape[2], -1)

        return Correlated(op(x.loc, *args, **kwargs), run(run(blocks).mT))

    return propagate


for _name in ("avg_pool2d", "adaptive_avg_pool2d"):
    rule(_name, rules=RULES)(by_channel(getattr(F, _name)))


def over_positions(op: Callable[..., Tensor]) -> Rule:
    """Return the rule of a sum or mean over positions."""

    def propagate(input: Any, dim: Any = None, keepdim: bool = False) -> Correlated:
        axes = [] if dim is None else [axis % input.ndim for axis in ([dim] if isinstance(dim, int) else dim)]
        if not axes or min(axes) < 2:
            raise refused(f"{op.__name__} over other axes than positions")
        result: Correlated = by_channel(op)(input, axes, keepdim)
        return result

    return propagate


rule("mean", rules=RULES)(over_positions(torch.mean))
rule("sum", rules=RULES)(over_positions(torch.sum))


@rule("pad", rules=RULES)
def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Correlated:
    """Pad images with a constant, which has no covariance."""
    if mode != "constant" or len(pad) > 4 or input.ndim != 4:
        raise refused("padding other than by a constant around images")
    around: Correlated = by_channel(F.pad)(input, pad)
    return Correlated(F.pad(input.loc, pad, mode, value), around.blocks)


def max_pool2d(input: Any, *args: Any, **kwargs: Any) -> Correlated:
    """Pool the largest mean, with the rows and columns of the covariance at its position (co-pooling)."""
    kwargs.pop("return_indices", None)
    x = activation(input, "max_pool2d")
    mean, index = F.max_pool2d_with_indices(x.loc, *args, **kwargs)
    blocks = whole_channels(x)
    examples, count, size, _ = blocks.shape
    channels, positions = x.shape[1], x.shape[2] * x.shape[3]
    offset = torch.arange(channels, device=index.device) % (channels // count) * positions
    chosen = (index.flatten(2) + offset[:, None]).reshape(examples, count, -1)
    rows = blocks.gather(2, chosen.unsqueeze(3).expand(-1, -1, -1, size))
    return Correlated(mean, rows.gather(3, chosen.unsqueeze(2).expand(-1, -1, chosen.shape[2], -1)))


rule("max_pool2d", rules=RULES)(max_pool2d)


def in_order(op: Callable[..., Tensor]) -> Rule:
    """Return the rule of an operation that keeps the flat order of an example's entries."""

    def propagate(input: Any, *args: Any, **kwargs: Any) -> Correlated:
        x = activation(input, op.__name__)
        mean = op(x.loc, *args, **kwargs)
        if mean.shape[:1] != x.shape[:1]:
            raise refused(f"{op.__name__} that changes the axis of the examples")
        return Correlated(mean, x.blocks)

    return propagate


for _op in handles("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone"):
    RULES[_op] = in_order(_op)
rule("register_hook", rules=RULES)(register_hook)
