"""Measure every cost that has a goal: ours, deterministic PyTorch's and a peer's, interleaved in one process.

python benchmarks/speed.py [--row "training step, lenet300"] [--again] [--before]

Each row runs in a separate process with one thread and is written to results/speed.json; finished rows are skipped
unless --again is set. Times are medians of CPU seconds without warm-up. Memory is the peak above that of the bare
interpreter, each way in a separate process. `--before` stores the figures as those before a change.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from measure import Rows, forget_peak, interleaved, memory
from peers import tried
from speed_rows import ROWS, Row


def in_a_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run work in a fork of this process, which has not computed anything yet."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(work()))
    child.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    finally:
        child.join()


def timed(row: Row) -> dict[str, Any]:
    """Return median CPU seconds of each way; a peer that cannot run is skipped with the reason."""
    torch.manual_seed(0)
    actions, absent = {}, {}
    for name, build in row.ways().items():
        action = tried(build)
        if not isinstance(action, str):
            actions[name] = action
        elif name == row.ours:
            raise SystemExit(action)
        else:
            absent[name] = action
    seconds = interleaved(actions, row.rounds, clock=time.process_time)
    return {"seconds": seconds, **({"not run": absent} if absent else {})}


def peak(row: Row, name: str) -> dict[str, Any]:
    """Return the peak memory of one way in bytes."""
    gc.collect()
    before = memory()
    forget_peak()
    torch.manual_seed(0)
    action = row.ways()[name]()
    if row.memory_of_run_alone:
        gc.collect()
        before = memory()
        forget_peak()
    for _ in range(2):
        action()
    return {"bytes": memory("VmHWM") - before}


def measure(row: Row) -> dict[str, Any]:
    """Return all figures of a row."""
    result = in_a_child(lambda: timed(row))
    seconds = result["seconds"]
    base = seconds[row.base] if row.base else 1.0
    figures: dict[str, Any] = {
        "what": row.what,
        "base": row.base or "a second",
        "ours": seconds[row.ours] / base,
        "goal": row.goal,
        "peers": {name: value / base for name, value in seconds.items() if name not in (row.ours, row.base)},
        "cpu_seconds": seconds,
        "rounds": row.rounds,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if row.memory:
        ours, plain = (in_a_child(lambda name=name: peak(row, name))["bytes"] for name in (row.ours, row.memory))
        figures["peak_bytes"] = {row.ours: ours, row.memory: plain}
        figures["peak_over_plain"] = ours / plain
    return figures | ({"not run": result["not run"]} if "not run" in result else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=ROWS, action="append")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--before", action="store_true", help="keep the figure as the one before a change")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the peers' own
    for name in arguments.row or ROWS:
        known = Rows("speed", order=ROWS).get(name, {})
        if "ours" in known and not arguments.again:
            continue
        figures = measure(ROWS[name])
        if arguments.before or "before" in known:
            figures["before"] = figures["ours"] if arguments.before else known["before"]
        Rows("speed", order=ROWS).keep(name, figures)


if __name__ == "__main__":
    main()
