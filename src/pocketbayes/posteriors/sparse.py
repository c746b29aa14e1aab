"""Sparse posteriors: a mean and a std for a few weights, exactly 0 for the others."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.base import Census, Posterior, softplus_inverse
from pocketbayes.posteriors.coding import Coding, positions, raw_std
from pocketbayes.posteriors.csr import Pattern, SparseMatrix
from pocketbayes.posteriors.gaussian import Gaussian, RuleTable
from pocketbayes.posteriors.layout import Layout, Slot
from pocketbayes.posteriors.priors import Prior
from pocketbayes.posteriors.removal import SCORES, Score, removal_score

__all__ = ["SCORES", "Kernel", "Score", "Sparse", "carry", "removal_score"]

Kernel = Literal["auto", "csr", "dense"]

CSR_DENSITY = 0.1
CSR_SIZE = 100_000
"""Smallest size and largest density of matrices for which "auto" uses CSR products, as measured in
benchmarks/sparse.py. The rule is fixed, so that a seed gives the same bits in every process."""


class Sparse(Posterior):
    """`w_i ~ N(mean_j, std_j^2)` for the s present weights i = index_j, `w_i = 0` for all others.

    Only the present weights exist: s positions, means and stds (no stds for point values), gradients, optimiser states
    and random numbers per draw. A pass that needs dense tensors scatters them and drops them afterwards.
    """

    name = "sparse"
    tensors: ClassVar = {
        "mean": Coding("mean", ("present",)),
        "rho": raw_std("present", optional=True),
        "index": positions("present"),
        "swapped": Coding("count", (), low=0),
    }

    def __init__(
        self, layout: Layout, index: Tensor, mean: Tensor, std: Tensor | None = None, kernel: Kernel = "auto"
    ) -> None:
        """Take the positions, means and stds of the present weights.

        Args:
            layout: The layout of all n weights.
            index: (s,) ascending positions of the present ones.
            mean: (s,) their means.
            std: (s,) their stds; None for point values.
            kernel: How linear layers multiply: "csr" over the present values (CPU only), "dense" by scattered values,
                or "auto" for the faster one by size and density. Convolutions are always dense.
        """
        super().__init__(layout)
        self.kernel = kernel
        self.mean = nn.Parameter(mean.detach().clone())
        self.rho: nn.Parameter | None
        self.register_parameter("rho", None if std is None else nn.Parameter(softplus_inverse(std.detach())))
        self.index: Tensor = nn.Buffer(index.detach())
        self.swapped: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.derive()

    def derive(self) -> None:
        """Check the positions and hold them in the smallest type."""
        check_choice("kernel", self.kernel, get_args(Kernel))
        index, size = self.index, self.layout.size
        if len(index) and not (index[0] >= 0 and index[-1] < size and bool((index.diff() > 0).all())):
            raise UserError(f"the positions of a sparse posterior must ascend within [0, {size})")
        self.index = index.to(torch.int32 if size < 2**31 else torch.int64)
        self._tables: _Tables | None = None

    # -- the distribution ---------------------------------------------------------------------------------------------

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means and softplus(rho) at the present weights, 0 elsewhere."""
        std = self.present_std()
        mean = self._scatter(self.mean)
        return mean, torch.zeros_like(mean) if std is None else self._scatter(std)

    def present_std(self) -> Tensor | None:
        """Return (s,) stds of the present weights; None for point values."""
        return None if self.rho is None else F.softplus(self.rho)

    @property
    def noise_size(self) -> int:
        """One number per present weight; none for point values."""
        return 0 if self.rho is None else self.index.numel()

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Draw at the present weights, 0 elsewhere."""
        return self._scatter(self._draw(noise))

    @property
    def independent(self) -> bool:
        """True: every random weight has its own noise."""
        return True

    def kl(self, prior: Prior) -> Tensor:
        """Return the sum over the present weights; 0 for point values."""
        std = self.present_std()
        if std is None:
            return self.mean.new_zeros(())
        return prior.take(self.index).total_kl(self.mean, std)

    # -- change of the present weights --------------------------------------------------------------------------------

    @torch.no_grad()
    def swap(self, removed: Tensor, added: Tensor, std: Tensor | None = None) -> Tensor:
        """Remove weights and add as many others, with mean 0.

        Args:
            removed: Places of removed weights among the present ones, in [0, s).
            added: Positions of added weights among all weights, in [0, n), so far absent.
            std: The stds of added weights.

        Returns:
            The previous place of each present weight, (s,), or -1 if it is new, as `carry` takes it.
        """
        if len(removed) != len(added):
            raise UserError(f"cannot replace {len(removed)} weights by {len(added)}: the density is fixed")
        stays = torch.ones_like(self.index, dtype=torch.bool)
        stays[removed] = False
        kept = stays.nonzero().flatten()
        index, order = torch.sort(torch.cat([self.index[kept], added.to(self.index.dtype)]))
        source = torch.cat([kept, torch.full_like(added, -1)])[order]
        if self.rho is not None:
            assert std is not None, "random weights need stds"
            self.rho.copy_(torch.cat([self.rho[kept], softplus_inverse(std).to(self.rho.dtype)])[order])
        self.mean.copy_(carry(self.mean, source))
        self.index.copy_(index)
        self.swapped += len(added)
        return source

    def spans(self) -> list[tuple[int, int]]:
        """Return the start and end of each slot's weights among the present ones."""
        return self._current_tables().spans

    def densities(self) -> dict[str, float]:
        """Return the fraction of present weights in every slot."""
        return {slot.name: (b - a) / max(slot.size, 1) for slot, (a, b) in zip(self.layout.slots, self.spans())}

    # -- passes over the present values alone -------------------------------------------------------------------------

    def matrix_slots(self) -> list[int]:
        """Return the slots with CSR products."""
        if not self._can_multiply_sparsely():
            return []
        pairs = enumerate(zip(self.layout.slots, self.spans()))
        return [number for number, (slot, span) in pairs if self._is_fast(slot, span)]

    def mean_slots(self, matrices: Collection[int] = ()) -> list[Tensor]:
        """Return the mean of every slot's weight, scattered or as a sparse matrix."""
        return self._parts(self.mean, matrices)

    def sample_slots(self, noise: Tensor | None = None, matrices: Collection[int] = ()) -> list[Tensor]:
        """Return one draw of every slot's weight, scattered or as a sparse matrix."""
        return self._parts(self._draw(noise), matrices)

    def gaussian_slots(self, rules: RuleTable, matrices: Collection[int] = ()) -> list[Gaussian]:
        """Return every slot's weight as Gaussians of scattered or of sparse moments."""
        if not matrices:
            return super().gaussian_slots(rules)
        std = self.present_std()
        std = torch.zeros_like(self.mean) if std is None else std
        var = std * std
        return [
            Gaussian(self._part(self.mean, number, True), self._part(var, number, True), rules=rules)
            if number in matrices
            else Gaussian(self._part(self.mean, number, False), std=self._part(std, number, False), rules=rules)
            for number in range(len(self.layout))
        ]

    def fast_slots(self) -> list[str]:
        """Return the names of the weights with CSR products."""
        return [self.layout.slots[number].name for number in self.matrix_slots()]

    # -- records ------------------------------------------------------------------------------------------------------

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables that CSR products keep between passes."""
        tables = self._tables
        return 0 if tables is None else sum(pattern.nbytes for pattern in tables.patterns.values())

    def census(self) -> Census:
        """Count the stored values and note how linear layers multiply."""
        fast = self.fast_slots()
        how = f"CSR products for {', '.join(fast)}; " if fast else ""
        census = super().census()
        return replace(
            census,
            memory_bytes=census.memory_bytes + self.table_bytes,
            notes=(f"{how}dense products of scattered values for {'the rest' if fast else 'all layers'}",),
        )

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _scatter(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.layout.size).index_copy_(0, self.index.long(), values)

    def _draw(self, noise: Tensor | None) -> Tensor:
        std = self.present_std()
        return self.mean if std is None else torch.addcmul(self.mean, std, self._noise(noise, self.mean))

    def _parts(self, values: Tensor, matrices: Collection[int]) -> list[Tensor]:
        if not matrices:
            return self.layout.views(self._scatter(values))
        return [self._part(values, number, number in matrices) for number in range(len(self.layout))]

    def _part(self, values: Tensor, number: int, sparse: bool) -> Tensor:
        """Return a slot's weight, as a sparse matrix or scattered into a dense tensor."""
        slot, (begin, end) = self.layout.slots[number], self.spans()[number]
        present = values[begin:end]
        if sparse:
            return SparseMatrix(self._pattern(number), present)
        index = self.index[begin:end].long() - slot.start
        return values.new_zeros(slot.size).index_copy_(0, index, present).view(slot.shape)

    def _can_multiply_sparsely(self) -> bool:
        if torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export() or self.kernel == "dense":
            return False
        return (
            self.mean.device.type == "cpu"
            and self.mean.dtype in (torch.float32, torch.float64)
            and torch.backends.mkl.is_available()
            and not torch.is_autocast_enabled("cpu")
        )

    def _is_fast(self, slot: Slot, span: tuple[int, int]) -> bool:
        present = span[1] - span[0]
        if len(slot.shape) != 2 or not present:
            return False
        return self.kernel == "csr" or (slot.size >= CSR_SIZE and present <= CSR_DENSITY * slot.size)

    def _pattern(self, number: int) -> Pattern:
        tables, slot = self._current_tables(), self.layout.slots[number]
        if number not in tables.patterns:
            begin, end = tables.spans[number]
            rows, columns = slot.shape
            tables.patterns[number] = Pattern.of(self.index[begin:end] - slot.start, (rows, columns))
        return tables.patterns[number]

    def _current_tables(self) -> _Tables:
        """Return the tables of the present positions, rebuilt if these have changed."""
        version = 0 if self.index.is_inference() else self.index._version
        if self._tables is None or self._tables.index is not self.index or self._tables.version != version:
            edges = torch.tensor([slot.start for slot in self.layout.slots] + [self.layout.size])
            places = torch.searchsorted(self.index, edges.to(self.index)).tolist()
            self._tables = _Tables(self.index, version, list(itertools.pairwise(places)))
        return self._tables


@dataclass
class _Tables:
    """Tables derived from the positions: each slot's span of present weights, and sparse patterns."""

    index: Tensor
    version: int
    spans: list[tuple[int, int]]
    patterns: dict[int, Pattern] = field(default_factory=dict)


def carry(values: Tensor, source: Tensor) -> Tensor:
    """Move values along with their weights; 0 for new weights (source -1)."""
    return torch.where(source >= 0, values[source.clamp(min=0)], 0)
