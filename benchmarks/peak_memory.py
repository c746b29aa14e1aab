"""The peak memory of a call, in bytes of tensors that live at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_memory(model_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Return the peak size in bytes of tensors created during one call, on any device.

    Existing tensors and memory used inside kernels are not counted. The number is the same in every run, since tensors
    are counted, not pages.
    """
    live = _LiveBytes()
    with live:
        model_fn(*args, **kwargs)
    return live.peak


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of all tensors in nested containers; a CSR matrix has three."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            csr = leaf.layout == torch.sparse_csr
            for part in (leaf.crow_indices(), leaf.col_indices(), leaf.values()) if csr else (leaf,):
                yield part.untyped_storage()


class _LiveBytes(TorchDispatchMode):
    """The bytes of live storages returned by operations."""

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
