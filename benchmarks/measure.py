"""Timing on a noisy machine: everything interleaved in one run, medians, ratios; results as JSON."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pocketbayes.environment import environment

RESULTS = Path(__file__).parent / "results"


def interleaved(
    actions: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each action, all of them run once per round so that a slow spell hits them alike.

    `time.process_time` as the clock counts only the seconds in which this process had a processor.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(warmup + rounds):
        for name, action in actions.items():
            start = clock()
            action()
            if number >= warmup:
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def ratios(seconds: Mapping[str, float], base: str) -> dict[str, float]:
    """Each time over the base's."""
    return {name: value / seconds[base] for name, value in seconds.items()}


def write_result(name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Writes NAME.json with the environment beside the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), **result}, indent=1) + "\n")
    return path
