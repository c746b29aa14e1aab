"""Parallelism with bitwise equal results: fixed chunks, one thread each, summed in order.

torch splits its loops by the number of threads, which changes the order of float sums (and whether an element falls
into a vector or a scalar tail). Here every operation runs on one thread, and chunks run in parallel instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

# None in worker threads too, so that nested maps there run serially.
_workers: ContextVar[int | None] = ContextVar("_workers", default=None)


@contextmanager
def fixed_order() -> Iterator[None]:
    """Run torch's operations on one thread each within the block and leave the threads to `ordered_map`."""
    if _workers.get() is not None:
        yield
        return
    threads = torch.get_num_threads()
    token = _workers.set(threads)
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        _workers.reset(token)


def workers() -> int:
    """Return how many threads the caller had when it entered `fixed_order`."""
    return _workers.get() or 1


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], device: torch.device) -> Iterator[Result]:
    """Yield results in the order of the items, with only a few of them in memory at a time.

    Args:
        function: applied to each item; it must not touch what another item writes.
        items: independent of the number of threads.
        device: devices other than a CPU process items one by one, since they are parallel inside.
    """
    threads = workers()
    if threads == 1 or device.type != "cpu":
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def slices(n: int, size: int) -> list[slice]:
    """Return consecutive slices of at most `size` that cover `range(n)`."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
