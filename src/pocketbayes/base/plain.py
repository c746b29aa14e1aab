"""Conversion of values to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any, digits: int | None = None) -> Any:
    """Replace NaN and infinity by null, since JSON has neither.

    Args:
        value: Numbers, text, and lists and mappings of them.
        digits: The significant digits that are kept; None for all.
    """
    if isinstance(value, Mapping):
        return {str(key): finite(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, digits) for item in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")
