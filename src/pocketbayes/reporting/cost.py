"""The cost of one prediction: operations and time."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from pocketbayes.inference.metrics import flops
from pocketbayes.inference.prediction import predict
from pocketbayes.network import Net, members

CALLS, SECONDS = 9, 0.5
"""Number of calls for the median latency, and the seconds after which fewer suffice."""


def cost_of(net: Net, samples: int, propagation: str | None = None) -> dict[str, Any]:
    """Measure FLOPs and seconds of one prediction on this machine; empty if the input shape is unknown."""
    info = members(net)[0].info
    if info is None:
        return {}
    x = torch.zeros(1, *info.input_shape)
    predict(net, x, samples, propagation)  # the first call makes the plan
    seconds: list[float] = []
    while len(seconds) < CALLS and sum(seconds) < SECONDS:
        start = time.perf_counter()
        predict(net, x, samples, propagation)
        seconds.append(time.perf_counter() - start)
    count = flops(predict, net, x, samples, propagation)
    return {"flops": count, "latency": statistics.median(seconds), "samples": samples}
