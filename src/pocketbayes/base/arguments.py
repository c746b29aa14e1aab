"""Checks of arguments that many functions share."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from pocketbayes.base.errors import UserError


def check_seed(seed: Any) -> int:
    """Return a seed that every generator takes.

    Raises:
        UserError: If it is no whole number of 64 bits.
    """
    if not isinstance(seed, Integral) or not -(1 << 63) <= int(seed) < 1 << 63:
        raise UserError(f"seed must be a whole number of at most 64 bits, not {seed!r}")
    return int(seed)


def check_path(path: Any, what: str) -> Path:
    """Return the path of a file or folder.

    Raises:
        UserError: If it is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{what} must be a path, not {path!r}")
    found = os.fsdecode(path)
    if not found or "\0" in found:
        raise UserError(f"{what} must be a path, not {found!r}")
    return Path(found)


def checked_shares(weights: Sequence[float], count: int) -> tuple[float, ...] | None:
    """Return the weights of a mixture, None where they are equal.

    Raises:
        UserError: If there is not one non-negative number per network, or if they do not sum to 1.
    """
    values = tuple(float(weight) for weight in weights)
    if len(values) != count:
        raise UserError(f"{len(values)} weights for {count} networks: give one per network")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise UserError(f"weights must be finite and not negative, not {list(values)}")
    if abs(math.fsum(values) - 1) > 1e-6:
        raise UserError(f"weights must sum to 1, not to {math.fsum(values):g}: divide each by that")
    return None if len(set(values)) == 1 else values
