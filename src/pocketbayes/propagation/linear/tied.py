"""Gradients of weights that copy entries of a table, summed by entry without the gradients themselves."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.csr import Pattern

MAX_PAIRS = 0.25
"""The most pairs of an output and an entry, per weight, with which two sparse products are the faster way."""
_BLOCK = 1 << 22
"""Numbers in flight at once: 16 MB in single precision."""


class TiedLayer:
    """A linear layer's weights W_oi, each a copy of the entry `index[o, i]` of a table.

    With output gradients d and inputs a of an example, the sum over the weights that copy entry k of d_o a_i is
    `sum_o d_o (sum_i a_i)`, the inner sum over the inputs that output o has with this entry: two products with sparse
    matrices of ones, for all examples at once.
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
        self._inner = _ones((len(pairs), inputs), counts, order % inputs)
        entries, by_entry = (pairs % size).sort()
        self._outer = _ones((size, len(pairs)), torch.bincount(entries, minlength=size), by_entry)

    def sums(self, delta: Tensor, inputs: Tensor) -> Tensor:
        """Return the sums (examples, size) from output gradients (examples, outputs) and inputs."""
        step = max(1, _BLOCK // len(self.outputs))
        parts = []
        for d, a in zip(delta.split(step), inputs.split(step)):
            inner = self._inner.to(a.dtype) @ a.T.contiguous()
            inner *= d.T.contiguous().index_select(0, self.outputs)
            parts.append(self._outer.to(a.dtype) @ inner)
        return torch.cat(parts, 1).T


def _ones(shape: tuple[int, int], counts: Tensor, columns: Tensor) -> Tensor:
    """Return a sparse matrix of ones, given how many are in each row, and their columns."""
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    return Pattern(shape, starts, columns.int()).matrix(torch.ones(len(columns), device=columns.device))


_LAYERS: WeakKeyDictionary[Posterior, dict[int, TiedLayer]] = WeakKeyDictionary()


def tied_layer(posterior: Posterior, slot: int, index: Tensor, size: int) -> TiedLayer | None:
    """Return the layer of a slot, made once for these entries; None where it would not be faster, or not on a CPU."""
    if index.device.type != "cpu":
        return None
    known = _LAYERS.setdefault(posterior, {})
    if slot not in known or not torch.equal(known[slot].index, index):
        known[slot] = TiedLayer(index, size)
    return known[slot] if known[slot].worthwhile else None
