"""What a storage says of its tensors: their role, shape and range. Files are packed and checked by it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError

Role = Literal["mean", "std", "positions", "entries", "codes", "count"]

PLACES = ("positions", "entries")
"""The roles of values that point at something."""
LARGEST = torch.finfo(torch.float64).max
"""Above every finite number of any type: the bound of values that need only be finite."""
KINDS = {"mean": "means", "std": "stds", "positions": "positions", "entries": "entries", "codes": "codes"}
"""What a census calls the values of a role; counts are not stored for the weights' sake."""


@dataclass(frozen=True)
class Coding:
    """How a file keeps a tensor, and what it may hold.

    Attributes:
        role: "mean" and "std" are numbers, which a file keeps as finely as its precision says for each. "positions" are
            places of weights, each once. "entries" are places in a table. "codes" are places in an ordered codebook,
            one for each weight. "count" is anything else that is whole.
        shape: A name for each dimension: tensors that name the same one agree on its size, and "weights" is the
            layout's. None for any shape.
        low: The smallest value; -infinity is below every number, so it must be asked for.
        high: The largest value.
        below: Dimensions whose sizes, added up, are above every value: of positions, the weights.
        dtype: The type, where it is not any float, or any integer, as the role says.
        optional: Whether the tensor may be missing.
    """

    role: Role
    shape: tuple[str, ...] | None = None
    low: float = -LARGEST
    high: float = LARGEST
    below: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    optional: bool = False


UNDECLARED = Coding("mean")
"""What is assumed of a tensor that a storage does not declare: as fine as means, and finite."""
MEAN = Coding("mean", ("weights",))


def raw_std(*shape: str, optional: bool = False) -> Coding:
    """Return the coding of what softplus makes stds of: -infinity is a std of 0."""
    return Coding("std", shape, low=-math.inf, optional=optional)


def positions(*shape: str, optional: bool = False) -> Coding:
    """Return the coding of places of weights."""
    return Coding("positions", shape, low=0, below=("weights",), optional=optional)


def check_tensors(tensors: Mapping[str, Tensor], codings: Mapping[str, Coding], sizes: Mapping[str, int]) -> None:
    """Reject tensors that a storage cannot have written.

    Args:
        tensors: The storage's tensors by name.
        codings: What it declares of them.
        sizes: The dimensions whose sizes are known; the others follow from the first tensor that names them.

    Raises:
        UserError: For the first tensor that is missing, or has another type, shape or range than it should.
    """
    if missing := [name for name, coding in codings.items() if not coding.optional and name not in tensors]:
        raise UserError(f"no {missing[0]!r}")
    known = dict(sizes)
    for name, tensor in tensors.items():
        _check_type(name, tensor, codings.get(name))
        _check_shape(name, tensor, codings.get(name, UNDECLARED), known)
    for name, tensor in tensors.items():
        _check_range(name, tensor, codings.get(name, UNDECLARED), known)
    floats = {tensor.dtype: name for name, tensor in tensors.items() if tensor.is_floating_point()}
    if len(floats) > 1:
        raise UserError(
            "numbers of different types: " + ", ".join(f"{name!r} {dtype}" for dtype, name in floats.items())
        )


def _check_type(name: str, tensor: Tensor, coding: Coding | None) -> None:
    if coding is None:
        return
    is_float = coding.role in ("mean", "std")
    fits = tensor.dtype == coding.dtype if coding.dtype else tensor.is_floating_point() == is_float
    if coding.role == "positions":
        fits = tensor.dtype in (torch.int32, torch.int64)  # torch indexes by no others
    if not fits or tensor.dtype == torch.bool or tensor.is_complex():
        wanted = coding.dtype or ("real numbers" if is_float else "whole numbers")
        raise UserError(f"{name!r} of type {tensor.dtype} in place of {wanted}")


def _check_shape(name: str, tensor: Tensor, coding: Coding, known: dict[str, int]) -> None:
    if coding.shape is None:
        return
    if tensor.ndim == len(coding.shape):
        for dimension, size in zip(coding.shape, tensor.shape):
            known.setdefault(dimension, size)
    wanted = tuple(known.get(dimension, dimension) for dimension in coding.shape)
    if tuple(tensor.shape) != wanted:
        raise UserError(f"{name!r} of shape {tuple(tensor.shape)} in place of {wanted}")


def _check_range(name: str, tensor: Tensor, coding: Coding, known: Mapping[str, int]) -> None:
    if not tensor.numel() or tensor.dtype == torch.bool or tensor.is_complex() or tensor.is_meta:
        return
    low, high = (end.item() for end in tensor.detach().aminmax())
    highest = sum(known[dimension] for dimension in coding.below) - 1 if coding.below else coding.high
    if not (coding.low <= low and high <= highest):  # also where one of them is NaN
        raise UserError(f"values from {low:g} to {high:g} in {name!r}, {_wanted(coding, highest)}")
    if coding.role == "positions" and not _each_once(tensor):
        raise UserError(f"the same position twice in {name!r}")


def _wanted(coding: Coding, highest: float) -> str:
    if highest < LARGEST:
        return f"which lie from {coding.low:g} to {highest:g}"
    return f"which are at least {coding.low:g} and finite" if coding.low > -LARGEST else "which are finite"


def _each_once(index: Tensor) -> bool:
    if bool((index.diff() > 0).all()):
        return True
    return len(index.unique()) == len(index)
