"""What one answer costs: arithmetic and time."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pocketbayes.network import Net

CALLS, SECONDS = 9, 0.5
"""Calls over which the median latency is taken, and the seconds after which fewer do."""


def cost_of(net: Net, samples: int, propagation: str | None = None) -> dict[str, Any]:
    """Measure FLOPs and seconds of one input's answer on this machine; empty without an input shape."""
    import torch

    from pocketbayes.inference.metrics import flops
    from pocketbayes.inference.prediction import predict
    from pocketbayes.network import members

    info = members(net)[0].info
    if info is None:
        return {}
    x = torch.zeros(1, *info.input_shape)
    predict(net, x, samples, propagation)  # the first call plans
    seconds: list[float] = []
    while len(seconds) < CALLS and sum(seconds) < SECONDS:
        start = time.perf_counter()
        predict(net, x, samples, propagation)
        seconds.append(time.perf_counter() - start)
    count = flops(predict, net, x, samples, propagation)
    return {"flops": count, "latency": statistics.median(seconds), "samples": samples}
