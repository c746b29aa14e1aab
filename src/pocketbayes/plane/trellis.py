"""Codes on a trellis: two codebooks take turns along a row of weights, as the parities of earlier codes decide.

The codebooks are mirror images: code k stands for `c_k` in the first and for `-c_k` in the second. Which of them is in
use at place t follows from the codes before it, so it costs nothing to store:

    side_0 = 0,  side_{t+1} = side_{t-1} xor (k_t mod 2)   with side_{-1} = 0.

One codebook alone is coarse, so its codes are short; both together are twice as fine. A search for the best path
through the four states (side_t, side_{t-1}) makes use of both (Ungerboeck 1982; with entropy coding Fischer and Wang
1992, Marcellin 1994). At two bits per normal weight, it saves about 0.16 bits at equal error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pocketbayes.plane.codes import Line, first_centres, lower_envelope, sample_values

LONGEST_PATH = 2304
"""Largest number of weights of a path; a longer row is cut into equal paths. Part of the file format."""
MULTIPLIER, MODULUS = 2_654_435_769, 1 << 32
"""The golden ratio as a fraction, which spreads the places of a path. Part of the file format."""
STATES = 4
STEP = 1.125
"""Distance of the first centres of one codebook, relative to those of codes on a line at the same lambda."""
ROUNDS = 10
MAX_FITTED = 1 << 16
FITTED_PATH = 128
"""Largest number of weights a codebook is fitted to, and the length of their paths."""
LARGEST_HALF = 128
"""Codes per side above which weights are coded on a line: both sides must fit into a byte."""

Ints = npt.NDArray[np.int64]


def path_length(row: int) -> int:
    """Return the length of the equal paths into which a row of weights is cut."""
    paths = max(1, -(-row // LONGEST_PATH))
    while row % paths:
        paths += 1
    return row // paths


def path_order(length: int) -> Ints:
    """Return the order of a path's places, whose every part is spread evenly over the row."""
    return np.argsort(np.arange(length, dtype=np.int64) * MULTIPLIER % MODULUS, kind="stable")


def sides_of(parities: Ints) -> Ints:
    """Return which codebook is in use at every place, 0 or 1, from the parities (paths, length) of the codes."""
    sides = np.zeros_like(parities)
    for first in (0, 1):
        sides[:, first + 1 :: 2] = np.bitwise_xor.accumulate(parities[:, first:-1:2], axis=1)
    return sides


def _paths(values: Ints, shapes: Sequence[Sequence[int]]) -> Iterator[tuple[Ints, Ints]]:
    """Yield the values of each layer as (paths, length) in storage, with the order of the places."""
    start = 0
    for shape in shapes:
        size = math.prod(shape)
        length = path_length(math.prod(shape[1:]))
        if size:
            yield values[start : start + size].reshape(-1, length), path_order(length)
        start += size


def drop_sides(codes: Ints, entries: int, shapes: Sequence[Sequence[int]]) -> tuple[Ints, int | None]:
    """Return the codes without their sides, and K; codes that are not on a trellis, and None.

    Args:
        codes: (n,), entries of the codebook.
        entries: The number of entries, 2K for codes on a trellis.
        shapes: The shapes of the layers.
    """
    half = max(entries // 2, 1)
    kept, sides = codes % half, codes // half
    on_trellis = entries % 2 == 0 and all(
        np.array_equal(sides_of(own[:, order] & 1), found[:, order])
        for (own, order), (found, _) in zip(_paths(kept, shapes), _paths(sides, shapes))
    )
    return (kept, half) if on_trellis else (codes, None)


def restore_sides(codes: Ints, half: int, shapes: Sequence[Sequence[int]]) -> Ints:
    """Invert `drop_sides`."""
    whole = codes.copy()
    for (own, order), (found, _) in zip(_paths(codes, shapes), _paths(whole, shapes)):
        found[:, order] += half * sides_of(own[:, order] & 1)
    return whole


@dataclass(frozen=True)
class TrellisCodebook:
    """Codes on a trellis.

    Attributes:
        centres: (2K,), K ascending values, K even, and then their negatives; the entry of code k is `k + K side`.
        bits: (K,) lengths of the codes.
        lam: The squared distance that a bit is worth.
    """

    centres: Tensor
    bits: Tensor
    lam: float

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def half(self) -> int:
        """The number of codes of one side, K."""
        return len(self.centres) // 2

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The edges between cells of the line, and for each cell the best even and odd code, its centre and penalty."""
        centres = self.centres[: self.half]
        heights = centres.square() + self.lam * self.bits
        found = [lower_envelope(centres[parity::2], heights[parity::2]) for parity in (0, 1)]
        edges = torch.cat([own for _, own in found]).sort().values
        below = torch.cat([edges.new_full((1,), -math.inf), edges])  # the lower end of each cell
        codes = [
            2 * used[torch.searchsorted(own, below, right=True)] + parity for parity, (used, own) in enumerate(found)
        ]
        both = torch.stack(codes, dim=1)
        return edges.to(centres.dtype), both, centres[both], self.lam * self.bits[both]

    def trim(self, index: Tensor) -> tuple[TrellisCodebook, Tensor]:
        """Remove unused pairs of codes at both ends, which keeps the others' parities; return the new codes too."""
        if not index.numel():
            return self, index
        kept = index % self.half
        first, last = int(kept.min()) // 2 * 2, int(kept.max()) // 2 * 2 + 2
        centres = torch.cat([part[first:last] for part in self.centres.split(self.half)])
        index = kept - first + (last - first) * (index // self.half)
        return replace(self, centres=centres, bits=self.bits[first:last]), index


class Search(Protocol):
    """A search for codes along paths, with several candidates per path."""

    survivors: ClassVar[int]

    def start(self, before: Tensor) -> None:
        """Begin after these codes (b, r, t)."""

    def extend(self, values: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Code the next weight of every candidate.

        Args:
            values: (b, r, s), its value in each of the s candidates.
            places: (b, r), the position of the weight.

        Returns:
            Codes and decoded values of the new candidates, and the old ones that they extend; None for one candidate.
        """

    def best(self, shape: Sequence[int]) -> Tensor:
        """Return the best candidate of each path, (b, r, 1)."""


class TrellisSearch:
    """The search for the path of least distance and code length through the four states."""

    survivors: ClassVar[int] = STATES

    def __init__(self, codebook: TrellisCodebook, factor: Callable[[Tensor], Tensor] | None = None) -> None:
        """Take the codebook and, as a function of the weights' positions, its unit."""
        self.codebook, self.factor = codebook, factor
        self.costs = codebook.centres
        place = codebook.centres.device
        # A branch is (side, side before, parity); new state (side', side) joins the branches of both `side before`.
        state = torch.arange(STATES, device=place)
        sides, befores = state // 2, torch.arange(2, device=place)
        self.parents = 2 * (state % 2)[:, None] + befores
        self.branches = 2 * self.parents + (sides[:, None] ^ befores)
        self.signs = (1 - 2 * sides).to(codebook.centres.dtype)

    def start(self, before: Tensor) -> None:
        """Begin after these codes (b, r, t)."""
        parities = before % self.codebook.half % 2
        side, previous = (parities.flip(-1)[..., first::2].sum(-1) % 2 for first in (0, 1))
        self.costs = torch.full((*before.shape[:2], STATES), math.inf, device=before.device)
        self.costs.scatter_(2, (2 * side + previous)[..., None], 0.0)

    def extend(self, values: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Code the next weight of every candidate."""
        edges, codes, centres, penalties = self.codebook.tables
        factor = None if self.factor is None else self.factor(places)[..., None]
        signed = values * self.signs if factor is None else values * self.signs / factor
        cells = torch.bucketize(signed.contiguous(), edges)
        decoded = centres[cells]
        costs = (signed[..., None] - decoded).square_().add_(penalties[cells]).add_(self.costs[..., None])
        joined = costs.flatten(2)[..., self.branches]
        self.costs, which = joined.min(-1)
        branch = self.branches.expand_as(joined).gather(3, which[..., None])[..., 0]
        parents = branch // 2
        found = codes[cells].flatten(2).gather(2, branch) + self.codebook.half * (parents // 2)
        values = decoded.flatten(2).gather(2, branch) * self.signs[parents]
        return found, values if factor is None else values * factor, parents

    def best(self, shape: Sequence[int]) -> Tensor:
        """Return the best state of each path."""
        return self.costs.argmin(-1, keepdim=True)


def code_paths(values: Tensor, places: Tensor, shares: Tensor | None, search: Search) -> tuple[Tensor, Tensor, Tensor]:
    """Code weights along paths; the error of each is spread over the later ones.

    Args:
        values: (b, r, c), r paths of c weights in each of b blocks.
        places: (b, r, c), the positions of the weights.
        shares: (b, c, c), the share of the error of each weight (row) that each later one takes; None for none.
        search: The search, which has been started.

    Returns:
        Codes, decoded values and errors, each (b, r, c).
    """
    blocks, rows, count = values.shape
    errors = values.new_zeros(blocks, rows, search.survivors, count)
    steps = []
    for column in range(count):
        own = values[:, :, None, column].expand(-1, -1, search.survivors)
        if shares is not None and column:
            spread = torch.bmm(errors[..., :column].flatten(1, 2), shares[:, :column, column, None])
            own = own - spread.view(own.shape)
        codes, decoded, parents = search.extend(own, places[:, :, column])
        steps.append((codes, decoded, parents))
        if shares is None:
            continue
        if parents is not None:
            own = own.gather(2, parents)
            errors[..., :column] = errors[..., :column].gather(2, parents[..., None].expand(-1, -1, -1, column))
        errors[..., column] = own - decoded
    at = best = search.best(values.shape[:2]).to(values.device)
    index, coded = torch.empty_like(places), torch.empty_like(values)
    for column in range(count - 1, -1, -1):
        codes, decoded, parents = steps[column]
        index[:, :, column], coded[:, :, column] = codes.gather(2, at)[..., 0], decoded.gather(2, at)[..., 0]
        at = at if parents is None else parents.gather(2, at)
    if shares is None:
        return index, coded, values - coded
    return index, coded, errors.gather(2, best[..., None].expand(-1, -1, -1, count))[:, :, 0]


def fit_trellis(values: Tensor, lam: float) -> TrellisCodebook:
    """Fit centres and code lengths to values by alternating searches and updates.

    Args:
        values: (n,), any scale.
        lam: The squared distance, in units of the values' variance, that a bit is worth.
    """
    some = sample_values(values.detach().flatten(), MAX_FITTED)
    length = min(FITTED_PATH, max(len(some), 1))
    some = some[torch.from_numpy(path_order(len(some))).to(some.device)]  # neighbours share a layer and its scale
    some = some[: len(some) // length * length].view(1, -1, length)
    line = Line(some.flatten())
    spread = max(line.std, 1e-30)
    lam = lam * spread**2
    step = STEP * math.sqrt(6 * lam / math.log(2))
    centres = (first_centres(line, spread, step) + step / 4).to(some)
    if len(centres) % 2:
        centres = torch.cat([centres, centres[-1:] + step])
    chances = torch.exp(-0.5 * (centres / spread).square()) + 1e-4
    codebook = _mirrored(centres, chances, lam)
    places = torch.zeros_like(some, dtype=torch.long)
    for _ in range(ROUNDS):
        search = TrellisSearch(codebook)
        search.start(places[..., :0])
        index = code_paths(some, places, None, search)[0].flatten()
        side, codes = index // codebook.half, index % codebook.half
        counts = torch.bincount(codes, minlength=codebook.half).to(some)
        sums = torch.zeros_like(counts).index_add_(0, codes, some.flatten() * (1 - 2 * side))
        own = codebook.centres[: codebook.half]
        codebook = _mirrored(torch.where(counts > 0, sums / counts.clamp(min=1), own), counts + 0.5, lam)
    return codebook.trim(index)[0]


def _mirrored(centres: Tensor, counts: Tensor, lam: float) -> TrellisCodebook:
    centres = centres.sort().values
    return TrellisCodebook(torch.cat([centres, -centres]), -torch.log2(counts / counts.sum()), lam)
