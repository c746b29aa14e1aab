"""A mean per weight and one std per row of a weight tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from pocketbayes.posteriors.base import Posterior, softplus_inverse
from pocketbayes.posteriors.coding import MEAN, raw_std
from pocketbayes.posteriors.layout import Layout


class RowStds(Posterior):
    """Independent weights `w_ri ~ N(mean_ri, std_r^2)`, `std = softplus(rho)`, with one std per row of the first axis.

    VDP++'s Eq. 12 has one variance per row.
    """

    name = "row-stds"
    tensors: ClassVar = {"mean": MEAN, "rho": raw_std("rows")}
    row: Tensor

    def __init__(self, layout: Layout, mean: Tensor, std: Tensor) -> None:
        """Take stds per weight (n,), averaged over rows, or per row (rows,)."""
        super().__init__(layout)
        sizes = torch.tensor([slot.size // slot.shape[0] for slot in layout.slots for _ in range(slot.shape[0])])
        row = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(mean.device)
        self.register_buffer("row", row, persistent=False)  # derived from the layout
        if len(std) != len(sizes):
            std = torch.zeros(len(sizes), dtype=std.dtype, device=std.device).index_add(0, row, std.detach())
            std = std / sizes.to(std)
        self.mean = nn.Parameter(mean.detach().clone())
        self.rho = nn.Parameter(softplus_inverse(std.detach()))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the means, and softplus(rho) for every weight of a row."""
        return self.mean, F.softplus(self.rho).gather(0, self.row)

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of weights and of rows."""
        return {"weights": layout.size, "rows": sum(slot.shape[0] for slot in layout.slots)}

    @classmethod
    def restore(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """Build from mean and rho, bit for bit."""
        self = cls(layout, tensors["mean"], tensors["rho"].exp())
        self.rho.data.copy_(tensors["rho"])
        return self
