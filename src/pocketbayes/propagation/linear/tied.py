"""Sums of gradients over weights that copy the same table entry, without the individual gradients."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors import Posterior

MAX_PAIRS = 0.25
"""Largest number of (output, entry) pairs per weight for which two sums are faster than one over all weights."""
_BLOCK = 1 << 22
"""Largest number of values in memory: 16 MB in single precision."""


class TiedLayer:
    """A linear layer whose weight W_oi copies entry `index[o, i]` of a table.

    With output gradients d and inputs a of an example, the gradient of entry k is `sum_o d_o (sum_i a_i)`, where the
    inner sum runs over inputs i with `index[o, i] = k`. Both are sums of rows, one row for all examples, which
    `embedding_bag` adds three times faster than a sparse matrix product.
    """

    def __init__(self, index: Tensor, size: int) -> None:
        """Take the entries (outputs, inputs) and the size of the table."""
        self.index = index
        outputs, inputs = index.shape
        keys = (index + size * torch.arange(outputs, device=index.device)[:, None]).flatten()
        keys, order = keys.sort()
        pairs, counts = keys.unique_consecutive(return_counts=True)
        self.worthwhile = len(pairs) <= MAX_PAIRS * index.numel()
        if not self.worthwhile:
            return
        self.outputs = pairs // size
        self._inner = (order % inputs).int(), _starts(counts)
        entries, by_entry = (pairs % size).sort()
        self._outer = by_entry.int(), _starts(torch.bincount(entries, minlength=size))

    def sums(self, delta: Tensor, inputs: Tensor) -> Tensor:
        """Return the sums (examples, size) from output gradients (examples, outputs) and inputs."""
        step = max(1, _BLOCK // len(self.outputs))
        parts = []
        for d, a in zip(delta.split(step), inputs.split(step)):
            inner = _row_sums(a.T.contiguous(), *self._inner)
            inner *= d.T.contiguous().index_select(0, self.outputs)
            parts.append(_row_sums(inner, *self._outer))
        return torch.cat(parts, 1).T


def _starts(counts: Tensor) -> Tensor:
    """Return the position of each group's first member."""
    return (counts.cumsum(0) - counts).int()


def _row_sums(table: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Sum the given rows of a table, group by group."""
    return F.embedding_bag(rows, table, starts, mode="sum")


_LAYERS: WeakKeyDictionary[Posterior, dict[int, TiedLayer]] = WeakKeyDictionary()


def tied_layer(posterior: Posterior, slot: int, index: Tensor, size: int) -> TiedLayer | None:
    """Return the cached layer of a slot; None if it would not be faster, or not on a CPU."""
    if index.device.type != "cpu":
        return None
    known = _LAYERS.setdefault(posterior, {})
    if slot not in known or not torch.equal(known[slot].index, index):
        known[slot] = TiedLayer(index, size)
    return known[slot] if known[slot].worthwhile else None
