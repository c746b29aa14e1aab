"""Operations that move, select or copy entries, which are the same for mean and variance."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, Op, mean_of
from pocketbayes.propagation.moments.table import (
    RULES,
    NoRuleError,
    Rule,
    changeable,
    handles,
    in_place,
    means_in,
    rule,
    variances_in,
)

MOVES = """
    view reshape flatten unflatten permute transpose swapaxes swapdims movedim moveaxis t squeeze unsqueeze expand
    broadcast_to repeat tile repeat_interleave contiguous clone chunk split unbind split_with_sizes tensor_split narrow
    select index_select gather take_along_dim roll flip rot90 diagonal unfold fold pixel_shuffle pixel_unshuffle
    channel_shuffle getitem __getitem__ cat concat concatenate stack hstack vstack dstack atleast_2d view_as reshape_as
    expand_as to float double half bfloat16 type type_as cpu cuda detach cumsum resolve_conj
"""
"""Operations f with mean f(mean) and variance f(variance). fold and cumsum add up independent entries, so variances
add."""

PROPERTIES: tuple[Any, ...] = (torch.Tensor.T, torch.Tensor.mT, torch.Tensor.data)

FACTORIES = """
    new_zeros new_ones new_empty new_full new_tensor zeros_like ones_like empty_like full_like rand_like randn_like
    randint_like
"""
"""Operations that use only a tensor's shape, type and device."""


def move(op: Op) -> Rule:
    """Return the rule of an operation that applies equally to mean and variance."""

    def moved(*args: Any, **kwargs: Any) -> Any:
        means = op(*means_in(args), **_values(kwargs, means_in))
        variances = op(*variances_in(args), **_values(kwargs, variances_in))
        if isinstance(means, Tensor):
            return Gaussian(means, variances)
        return type(means)(Gaussian(m, v) for m, v in zip(means, variances))

    return moved


def factory(op: Op) -> Rule:
    """Return the rule of an operation that makes a plain tensor like a Gaussian."""

    def made(*args: Any, **kwargs: Any) -> Any:
        return op(*means_in(args), **kwargs)

    return made


def _values(kwargs: dict[str, Any], replace: Any) -> dict[str, Any]:
    return {name: replace(value) for name, value in kwargs.items()}


RULES.update({op: move(op) for op in (*handles(*MOVES.split()), *(prop.__get__ for prop in PROPERTIES))})
RULES.update({op: factory(op) for op in handles(*FACTORIES.split())})


@rule("pad")
def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Gaussian:
    """Pad: copied entries keep their variance, constants have none."""
    assert isinstance(input, Gaussian)
    return Gaussian(F.pad(input.loc, pad, mode, value), F.pad(input.variance, pad, mode))


@rule("embedding")
def embedding(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Gaussian:
    """Return the rows of a random table."""
    assert isinstance(weight, Gaussian)
    if kwargs.get("max_norm") is not None or (len(args) > 1 and args[1] is not None):
        raise NoRuleError("moments", "embedding with max_norm")
    return Gaussian(
        F.embedding(input, weight.loc, *args, **kwargs), F.embedding(input, weight.variance, *args, **kwargs)
    )


@rule("masked_fill")
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Gaussian:
    """Fill entries with the value's mean and variance."""
    assert isinstance(input, Gaussian)
    var = value.variance if isinstance(value, Gaussian) else 0.0
    return Gaussian(input.loc.masked_fill(mask, mean_of(value)), input.variance.masked_fill(mask, var))


@rule("where")
def where(condition: Tensor, input: Any, other: Any) -> Gaussian:
    """Select entries by a condition that is not random."""
    if isinstance(input, Tensor) and condition.dtype != torch.bool:  # Tensor.where(self, condition, other)
        condition, input = input, condition
    one, two = (value.variance if isinstance(value, Gaussian) else 0.0 for value in (input, other))
    return Gaussian(torch.where(condition, mean_of(input), mean_of(other)), torch.where(condition, one, two))


@rule("__setitem__", ops=(operator.setitem,))
def setitem(x: Tensor, index: Any, value: Any) -> None:
    """Write mean and variance at an index."""
    target = changeable(x, "item assignment")
    target.loc[index] = mean_of(value)
    target.variance[index] = value.variance if isinstance(value, Gaussian) else 0.0


@rule("copy_")
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Gaussian:
    """Overwrite mean and variance."""
    target = changeable(x, "copy_")
    target.loc.copy_(mean_of(source))
    target.variance.copy_(source.variance) if isinstance(source, Gaussian) else target.variance.zero_()
    return target


@rule("register_hook")
def register_hook(x: Gaussian, hook: Any) -> Any:
    """Register a hook on the gradient of the mean."""
    return x.loc.register_hook(hook)


rule("masked_fill_")(in_place(masked_fill, "masked_fill_"))
