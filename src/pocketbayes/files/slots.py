"""A network's layout as a file states it, with sizes checked before anything is allocated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pocketbayes.base.errors import UserError

MOST_LAYERS = 1 << 13
MOST_VALUES = 1 << 40
MOST_DIMENSIONS = 16


def checked_size(value: Any) -> int:
    """Return a size that a file states, or reject it."""
    if type(value) is not int or not 0 <= value < MOST_VALUES:
        raise UserError(f"{value!r} is not a size")
    return value


def checked_shape(shape: Any) -> list[int]:
    """Return a shape that a file states, or reject it."""
    sizes = [checked_size(size) for size in shape]
    if len(sizes) > MOST_DIMENSIONS or math.prod(sizes) >= MOST_VALUES:
        raise UserError(f"{sizes} is not a shape")
    return sizes


def edges_of(slots: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return where each slot begins among all weights, and where the last one ends."""
    return [0, *itertools.accumulate(math.prod(slot["shape"]) for slot in slots)]


def layout_size(slots: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of weights."""
    return edges_of(slots)[-1]


def short_slots(slots: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return `[name, shape]` for every slot, with its sites if they differ from the name."""
    return [[s["name"], s["shape"], *([s["sites"]] if list(s["sites"]) != [s["name"]] else [])] for s in slots]


def long_slots(slots: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the slots that `short_slots` shortened, or reject what cannot be a layout."""
    if len(slots) > MOST_LAYERS:
        raise UserError(f"it claims to have {len(slots)} layers")
    return [
        {"name": name, "shape": checked_shape(shape), "sites": list(sites[0]) if sites else [name]}
        for name, shape, *sites in slots
    ]
