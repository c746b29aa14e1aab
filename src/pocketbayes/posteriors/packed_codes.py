"""Codes in an exported graph, in few bits: frequent codes are short, others follow an escape token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.plane.trellis import path_length, path_order
from pocketbayes.posteriors.quantized import pack, unpack

WIDTHS = (1, 2, 4, 8)
"""Possible bits per token, which divide a byte."""
LEVELS = 3
"""Largest number of lists of tokens."""
MAX_CODES = 256


class PackedCodes(nn.Module):
    """Codes as tokens of a fixed width: the most frequent codes, and an escape token for codes in the next list.

    Runtimes have no entropy decoder. A few widths come close to the entropy, and every runtime can decode them.
    """

    tokens: Tensor
    frequent: Tensor

    def __init__(self, index: Tensor, widths: Sequence[int]) -> None:
        """Take the codes (n,) and the width of each list."""
        super().__init__()
        width, *others = widths
        self.width, self.size = width, len(index)
        self.escape = 2**width - 1 if others else 2**width
        ranked = torch.bincount(index.long()).argsort(descending=True, stable=True)
        frequent = ranked[: self.escape]
        token = torch.full((len(ranked),), self.escape % 256, dtype=torch.uint8)
        token[frequent] = torch.arange(len(frequent)).to(torch.uint8)
        tokens = token[index.long()]
        self.register_buffer("tokens", pack(tokens, width))
        self.register_buffer("frequent", torch.cat([frequent, frequent.new_zeros(1)]).int())
        self.rest: PackedCodes | None = None
        if others and bool((tokens == self.escape).any()):
            self.rest = PackedCodes(index[tokens == self.escape], others)

    def forward(self) -> Tensor:
        """Return the codes (n,), int32."""
        tokens = unpack(self.tokens, self.width, self.size).int()
        codes = self.frequent.index_select(0, tokens)
        if self.rest is None:
            return codes
        is_escape = (tokens == self.escape).int()
        place = (torch.cumsum(is_escape, 0) - 1).clamp(min=0).int()
        return torch.where(is_escape.bool(), self.rest().index_select(0, place), codes)


class PackedPaths(nn.Module):
    """Codes on a trellis as packed codes without sides, which are derived from the parities (see `plane.trellis`)."""

    def __init__(self, codes: Tensor, half: int, shapes: Sequence[Sequence[int]]) -> None:
        """Take the codes (n,) without sides, the number of entries of a side, and the shapes of the layers."""
        super().__init__()
        self.codes, self.entries = pack_codes(codes), half
        self.sizes = [math.prod(shape) for shape in shapes]
        self.lengths = [path_length(size // shape[0]) if size else 0 for size, shape in zip(self.sizes, shapes)]
        for length in set(self.lengths) - {0}:
            order = torch.from_numpy(path_order(length))
            self.register_buffer(f"order{length}", order.short())
            self.register_buffer(f"rank{length}", order.argsort().short())

    def forward(self) -> Tensor:
        """Return the entries of the codebook (n,), int32."""
        codes: Tensor = self.codes()
        sides = [self._sides(part % 2, length) for part, length in zip(codes.split(self.sizes), self.lengths) if length]
        return codes + self.entries * torch.cat(sides)

    def _sides(self, parity: Tensor, length: int) -> Tensor:
        order, rank = (getattr(self, f"{name}{length}").int() for name in ("order", "rank"))
        parity = F.pad(parity.view(-1, length).index_select(1, order), (0, length % 2))
        total = parity.view(len(parity), -1, 2).cumsum(1).view(len(parity), -1).int()
        return (F.pad(total, (1, 0)).index_select(1, rank) % 2).flatten()


def packed_bits(counts: Tensor, widths: Sequence[int]) -> float:
    """Return the total bits of the lists; infinity if the last one is too narrow."""
    left = counts.sort(descending=True).values
    total = 0.0
    for width in widths[:-1]:
        total += float(left.sum()) * width
        left = left[2**width - 1 :]
    return total + float(left.sum()) * widths[-1] if len(left) <= 2 ** widths[-1] else float("inf")


def pack_codes(index: Tensor) -> PackedCodes:
    """Pack codes (n,) below `MAX_CODES` into the lists that take the fewest bits."""
    counts = torch.bincount(index.long())
    ways = itertools.chain.from_iterable(itertools.product(WIDTHS, repeat=levels) for levels in range(1, LEVELS + 1))
    return PackedCodes(index, min(ways, key=lambda widths: packed_bits(counts, widths)))
