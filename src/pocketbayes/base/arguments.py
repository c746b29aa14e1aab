"""Checks of arguments that many functions take."""

from __future__ import annotations

import os
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
