"""Checks of arguments that many functions share."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from pocketbayes.base.errors import UnknownNameError, UserError


def check_seed(seed: Any) -> int:
    """Return a seed that every random generator accepts."""
    if not isinstance(seed, Integral) or not -(1 << 63) <= int(seed) < 1 << 63:
        raise UserError(f"seed must be a 64-bit integer, not {seed!r}")
    return int(seed)


def check_choice(what: str, value: object, known: Collection[str]) -> None:
    """Reject a value that is none of the known names."""
    if value not in known:
        raise UnknownNameError(what, value, known)


def check_path(path: Any, what: str) -> Path:
    """Return the path of a file or folder."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{what} must be a path, not {path!r}")
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise UserError(f"{what} must be a path, not {text!r}")
    return Path(text)


def checked_shares(weights: Sequence[float], count: int) -> tuple[float, ...] | None:
    """Return the weights of a mixture, or None if they are all equal."""
    try:
        values = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        raise UserError(f"weights must be a list of numbers, one per network, not {weights!r}") from None
    if len(values) != count:
        raise UserError(f"{len(values)} weights for {count} networks: give one per network")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise UserError(f"weights must be finite and not negative, not {list(values)}")
    if max(values) > 2 or abs(math.fsum(values) - 1) > 1e-6:
        raise UserError(f"weights must sum to 1, not to {sum(values):g}: divide each by that")
    return None if len(set(values)) == 1 else values
