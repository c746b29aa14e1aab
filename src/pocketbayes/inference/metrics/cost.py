"""What a call costs in arithmetic and in memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def flops(model_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Count the floating-point operations of one call; a multiplication and its addition count as two.

    Products of matrices, convolutions and attention are counted; elementwise operations, pooling and normalisation are
    not (`torch.utils.flop_counter`'s convention). If the function calls `backward`, that is counted too.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model_fn(*args, **kwargs)
    return int(counter.get_total_flops())


def peak_memory(model_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Return the most bytes that tensors made during one call held at once, on whichever device they lie.

    What was there before the call does not count, nor does memory that a kernel uses inside itself. The number is the
    same in every run: tensors are counted, not pages.
    """
    live = _LiveBytes()
    with live:
        model_fn(*args, **kwargs)
    return live.peak


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Return the memory behind all tensors of nested containers; a matrix in compressed rows has three parts."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            csr = leaf.layout == torch.sparse_csr
            for part in (leaf.crow_indices(), leaf.col_indices(), leaf.values()) if csr else (leaf,):
                yield part.untyped_storage()


class _LiveBytes(TorchDispatchMode):
    """The bytes of the storages that operations return, as long as they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            key, size = storage._cdata, storage.nbytes()
            if key not in self.seen and key not in before:
                self.seen.add(key)
                self.now += size
                weakref.finalize(storage, self._gone, key, size)
        self.peak = max(self.peak, self.now)
        return result

    def _gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size
