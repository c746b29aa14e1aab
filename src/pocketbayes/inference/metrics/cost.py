"""The cost of a call in floating-point operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def flops(model_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Count the floating-point operations of one call; a multiplication and its addition count as two.

    Products of matrices, convolutions and attention are counted; elementwise operations, pooling and normalisation are
    not (`torch.utils.flop_counter`'s convention). If the function calls `backward`, that is counted too.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model_fn(*args, **kwargs)
    return int(counter.get_total_flops())
