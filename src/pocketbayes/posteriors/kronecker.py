"""A Gaussian with Kronecker-factored covariance per weight tensor, as the Laplace approximation returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.coding import FIXED_MEAN, Coding
from pocketbayes.posteriors.layout import Layout, Slot
from pocketbayes.posteriors.priors import Prior


class Kronecker(Posterior):
    """`W = mean + R (std * E) C^T` for each random slot as a matrix, with E standard normal; `W = mean` elsewhere.

    R and C hold the eigenvectors of the covariance among rows and among columns. A slot of r x c weights takes r^2 +
    c^2 + r c values, a dense covariance (r c)^2. The tensors are buffers, since nothing is trained.
    """

    name = "kronecker"
    tensors: ClassVar = {
        "mean": FIXED_MEAN,
        "std": Coding("std", ("random",), low=0, trained=False),
        "rows": Coding("std", ("row factors",), trained=False, counted="factors"),
        "columns": Coding("std", ("column factors",), trained=False, counted="factors"),
    }

    def __init__(
        self, layout: Layout, mean: Tensor, slots: Sequence[int], std: Tensor, rows: Tensor, columns: Tensor
    ) -> None:
        """Take all means (n,), the numbers of the random slots, and their stds, R and C, flattened slot by slot."""
        super().__init__(layout)
        self.mean: Tensor
        self.std: Tensor
        self.rows: Tensor
        self.columns: Tensor
        self.slots = list(slots)
        for name, tensor in {"mean": mean, "std": std, "rows": rows, "columns": columns}.items():
            self.register_buffer(name, tensor.detach().clone(memory_format=torch.contiguous_format))
        self.derive()

    def derive(self) -> None:
        """Reject slots that the layout does not have."""
        known = range(len(self.layout.slots))
        if list(self.slots) != sorted(set(self.slots) & set(known)):
            raise UserError(f"random slots {list(self.slots)} of a layout with {len(known)}")

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of weights, and of values in each kind of factor."""
        slots = [layout.slots[number] for number in config["slots"]]
        return {
            "weights": layout.size,
            "random": sum(slot.size for slot in slots),
            "row factors": sum(slot.shape[0] ** 2 for slot in slots),
            "column factors": sum(math.prod(slot.shape[1:]) ** 2 for slot in slots),
        }

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means and marginal stds: `var W_ij = sum_kl R_ik^2 std_kl^2 C_jl^2`, 0 outside the slots."""
        std = torch.zeros_like(self.mean)
        for slot, block, rows, columns in self._blocks():
            std[slot.start : slot.stop] = (rows.square() @ block.square() @ columns.square().T).sqrt().flatten()
        return self.mean, std

    def weight_means(self) -> Tensor:
        """Return the means as they are stored."""
        return self.mean

    def random_slots(self) -> list[int]:
        """Return those with factors."""
        return self.slots

    @property
    def noise_size(self) -> int:
        """One number per random weight."""
        return self.std.numel()

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return mean + R (std * E) C^T."""
        return self.draws(self._noise(noise, self.mean)[None])[0]

    def draws(self, noise: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return all draws by two small matrix products per slot."""
        result = self.mean[start:stop].repeat(len(noise), 1)
        parts = noise.split(self._sizes(), dim=1)
        for part, (slot, std, rows, columns) in zip(parts, self._blocks()):
            if start <= slot.start and slot.stop <= start + result.shape[1]:
                change = rows @ (part.view(-1, *std.shape) * std) @ columns.T
                result[:, slot.start - start : slot.stop - start] += change.flatten(1)
        return result

    def project(self, gradient: Tensor, start: int = 0) -> Tensor:
        """Compute std * (R^T G C) for the gradient G of each random slot."""
        parts = [
            (rows.T @ gradient[:, slot.start - start : slot.stop - start].reshape(-1, *std.shape) @ columns) * std
            for slot, std, rows, columns in self._blocks()
        ]
        return torch.cat([part.flatten(1) for part in parts], 1)

    def kl(self, prior: Prior) -> Tensor:
        """Compute `KL(q || prior) = sum_i KL(q_i || prior_i) + total correlation of q`, exact for factorised priors."""
        return super().kl(prior) + self.total_correlation()

    def total_correlation(self) -> Tensor:
        """Return `sum log marginal std - sum log std`, since rotations leave the determinant unchanged."""
        marginal = self.moments()[1]
        return marginal[marginal > 0].log().sum() - self.std.log().sum()

    def _sizes(self) -> list[int]:
        return [self.layout.slots[number].size for number in self.slots]

    def _blocks(self) -> Iterator[tuple[Slot, Tensor, Tensor, Tensor]]:
        """Return each random slot, its stds (r, c), R and C."""
        slots = [self.layout.slots[number] for number in self.slots]
        heights = [slot.shape[0] for slot in slots]
        widths = [math.prod(slot.shape[1:]) for slot in slots]
        stds = self.std.split(self._sizes())
        rows = self.rows.split([height**2 for height in heights])
        columns = self.columns.split([width**2 for width in widths])
        for slot, height, width, std, row, column in zip(slots, heights, widths, stds, rows, columns):
            yield slot, std.view(height, width), row.view(height, height), column.view(width, width)
