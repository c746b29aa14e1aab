"""A mean per weight and one std per row of a weight tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.posteriors.base import Posterior, softplus_inverse
from pocketbayes.posteriors.coding import MEAN, raw_std
from pocketbayes.posteriors.layout import Layout


class RowStds(Posterior):
    """Independent weights `w_ri ~ N(mean_ri, std_r^2)`, `std = softplus(rho)`, with one std per row of the first axis.

    VDP++'s Eq. 12 has one variance per row.
    """

    name = "row-stds"
    tensors: ClassVar = {"mean": MEAN, "rho": raw_std("rows")}

    def __init__(self, layout: Layout, mean: Tensor, std: Tensor) -> None:
        """Take stds per weight (n,), which are averaged over rows."""
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())
        self.derive()
        self.rho = nn.Parameter(softplus_inverse(self.row_means(std.detach())))

    def derive(self) -> None:
        """Find the row of every weight."""
        sizes = [slot.size // slot.shape[0] for slot in self.layout.slots for _ in range(slot.shape[0])]
        row = torch.repeat_interleave(torch.tensor(sizes))
        self.row = nn.Buffer(row.to(self.mean.device), persistent=False)

    def row_means(self, values: Tensor) -> Tensor:
        """Average values (n,) over rows."""
        counts = torch.bincount(self.row)
        return values.new_zeros(len(counts)).index_add(0, self.row, values) / counts

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means, and softplus(rho) for every weight of a row."""
        return self.mean, F.softplus(self.rho).gather(0, self.row)

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of weights and of rows."""
        return {"weights": layout.size, "rows": sum(slot.shape[0] for slot in layout.slots)}
