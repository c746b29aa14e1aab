"""How files describe modules, and declarations of a storage's tensors (role, shape, range)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError

Role = Literal["mean", "std", "positions", "entries", "codes", "count"]

PLACES = ("positions", "entries")
"""Roles whose values are indices."""
LARGEST = torch.finfo(torch.float64).max
"""The largest finite number: the bound of values that need only be finite."""
KINDS = {"mean": "means", "std": "stds", "positions": "positions", "entries": "entries", "codes": "codes"}
"""Names of the roles in a census, which leaves out counts."""


@dataclass(frozen=True)
class Coding:
    """How a file stores a tensor, and which values are valid.

    Attributes:
        role: "mean" and "std" are real numbers, stored with the file's precision for each. "positions" are indices of
            weights, without duplicates. "entries" are indices into a table. "codes" are indices into an ordered
            codebook, one per weight. "count" is any other integer.
        shape: A name per dimension; tensors that share a name must agree on its size, and "weights" is the layout's.
            None for any shape.
        low: The smallest value; -infinity must be allowed explicitly.
        high: The largest value.
        below: Dimensions whose total size is an exclusive upper bound; for positions, the weights.
        dtype: The exact type; None for any float or any integer, depending on the role.
        optional: Whether the tensor may be missing.
        trained: Whether real numbers are parameters; otherwise they are buffers.
        counted: The tensor's name in a census; by default that of its role.
    """

    role: Role
    shape: tuple[str, ...] | None = None
    low: float = -LARGEST
    high: float = LARGEST
    below: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    optional: bool = False
    trained: bool = True
    counted: str = ""


UNDECLARED = Coding("mean")
"""The default for undeclared tensors: finite, with the precision of means."""
MEAN = Coding("mean", ("weights",))
FIXED_MEAN = Coding("mean", ("weights",), trained=False)


class Described(nn.Module):
    """A module that files describe by its name, settings and tensors."""

    name: ClassVar[str]

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments that, with the module's tensors, rebuild it."""
        names = inspect.signature(type(self).__init__).parameters
        return {name: vars(self)[name] for name in names if name in vars(self)}

    def described(self) -> dict[str, Any]:
        """Return what a file holds of the module."""
        return {"name": self.name, "config": self.config(), "tensors": dict(self.state_dict())}


def raw_std(*shape: str, optional: bool = False) -> Coding:
    """Return the coding of softplus-inverse stds, where -infinity means a std of 0."""
    return Coding("std", shape, low=-math.inf, optional=optional)


def positions(*shape: str, optional: bool = False) -> Coding:
    """Return the coding of positions of weights."""
    return Coding("positions", shape, low=0, below=("weights",), optional=optional)


def size_of_codebook(name: str, tensors: Mapping[str, Tensor], codings: Mapping[str, Coding]) -> int:
    """Return the number of entries to which the codes in a tensor refer, by the tensors that share their dimension."""
    sizes = {
        dimension: size
        for other, tensor in tensors.items()
        for dimension, size in zip(codings[other].shape or (), tensor.shape)
    }
    return sum(sizes.get(dimension, 0) for dimension in codings[name].below)


def check_tensors(tensors: Mapping[str, Tensor], codings: Mapping[str, Coding], sizes: Mapping[str, int]) -> None:
    """Reject tensors that a storage cannot have written.

    Args:
        tensors: The storage's tensors by name.
        codings: Their declarations.
        sizes: Known sizes of dimensions; others follow from the first tensor that names them.
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
        fits = tensor.dtype in (torch.int32, torch.int64)  # torch accepts no other indices
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
    if not (coding.low <= low and high <= highest):  # also true if one of them is NaN
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
