"""Sums of gradients over weights that copy the same table entry, without the individual gradients."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.csr import Pattern

MAX_PAIRS = 0.25
"""Largest number of (output, entry) pairs per weight for which two sparse products are faster."""
_BLOCK = 1 << 22
"""Largest number of values in memory: 16 MB in single precision."""


class TiedLayer:
    """A linear layer whose weight W_oi copies entry `index[o, i]` of a table.

    With output gradients d and inputs a of an example, the gradient of entry k is `sum_o d_o (sum_i a_i)`, where the
    inner sum runs over inputs i with `index[o, i] = k`: two products with sparse matrices of ones for all examples.
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
    """Return a sparse matrix of ones from the counts per row and the columns."""
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    return Pattern(shape, starts, columns.int()).matrix(torch.ones(len(columns), device=columns.device))


_LAYERS: WeakKeyDictionary[Posterior, dict[int, TiedLayer]] = WeakKeyDictionary()


def tied_layer(posterior: Posterior, slot: int, index: Tensor, size: int) -> TiedLayer | None:
    """Return the cached layer of a slot; None if it would not be faster, or not on a CPU."""
    if index.device.type != "cpu":
        return None
    known = _LAYERS.setdefault(posterior, {})
    if slot not in known or not torch.equal(known[slot].index, index):
        known[slot] = TiedLayer(index, size)
    return known[slot] if known[slot].worthwhile else None
