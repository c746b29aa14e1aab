"""Weights as codes: a small codebook and an entry number per weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.plane.codes import entropy_bits
from pocketbayes.plane.trellis import drop_sides
from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.coding import Coding
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.packed_codes import MAX_CODES, PackedCodes, PackedPaths, pack_codes

Units = Literal["network", "layer", "filter"]
StdUnits = Literal["none", "layer", "filter", "code"]


class Coded(Posterior):
    """Coded weights: `mean_i = scale_u centre_k`, `std_i = std_u` or `scale_u std_k`, for code k = index_i and unit u.

    A unit is the whole network, a layer, or a filter (a row of the weight's first axis). With a std per code the
    codebook lies in the plane of means and stds; with one per unit, or none, on a line. Draws are independent.
    """

    name = "coded"
    tensors: ClassVar = {
        "index": Coding("codes", ("weights",), low=0, below=("codes",)),
        "centres": Coding("mean", ("codes",)),
        "scale": Coding("mean", ("units",), low=0, trained=False),
        "std": Coding("std", ("std units",), low=0, optional=True, trained=False),
    }

    def __init__(
        self,
        layout: Layout,
        index: Tensor,
        centres: Tensor,
        scale: Tensor | None = None,
        std: Tensor | None = None,
        *,
        units: Units = "network",
        std_units: StdUnits = "none",
    ) -> None:
        """Take codes (n,), centres (K,), a scale per unit (1 by default) and, if any, stds."""
        super().__init__(layout)
        self.units, self.std_units = units, std_units
        smallest = torch.uint8 if len(centres) <= 256 else torch.int32
        self.index: Tensor = nn.Buffer(index.detach().to(smallest))
        self.centres = nn.Parameter(centres.detach().clone())
        ones = torch.ones(len(unit_sizes(layout, units)), dtype=centres.dtype, device=centres.device)
        self.scale = nn.Buffer((ones if scale is None else scale).detach().clone())
        if std_units != "none":
            assert std is not None
            self.std = nn.Buffer(std.detach().clone())
        self.derive()

    def derive(self) -> None:
        """Reject unknown units."""
        for value, kinds in ((self.units, Units), (self.std_units, StdUnits)):
            check_choice("unit", value, get_args(kinds))
        self._packed: PackedCodes | PackedPaths | None = None

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of weights and of units."""
        stds = config["std_units"]
        std_units = len(tensors["centres"]) if stds == "code" else len(unit_sizes(layout, stds))
        return {"weights": layout.size, "units": len(unit_sizes(layout, config["units"])), "std units": std_units}

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the entries of the codebook times the scales of the units."""
        codes = self.index.int() if self._packed is None else self._packed()
        scale = self.spread(self.scale, self.units)
        mean = self.centres.index_select(0, codes) * scale
        if self.std_units == "none":
            return mean, torch.zeros_like(mean)
        if self.std_units == "code":
            return mean, self.std.index_select(0, codes) * scale
        return mean, self.spread(self.std, self.std_units).expand_as(mean)

    def spread(self, values: Tensor, units: str) -> Tensor:
        """Expand a value per unit to its weights; a single value of the network stays as it is."""
        if units == "network":
            return values
        counts = unit_counts(self.layout, units)
        parts = zip(values.split(counts), self.layout.slots, counts)  # ONNX has no repeat_interleave
        return torch.cat(
            [part[:, None].expand(-1, slot.size // max(count, 1)).reshape(-1) for part, slot, count in parts]
        )

    @property
    def noise_size(self) -> int:
        """0 without stds, otherwise one number per weight."""
        return 0 if self.std_units == "none" else self.layout.size

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return one draw, or the means if there are no stds."""
        return self.held_moments()[0] if self.std_units == "none" else super().sample(noise)

    def code_bits(self) -> dict[str, float]:
        """Return the entropy of each slot's codes, without the sides of codes on a trellis."""
        codes, _ = self._without_sides()
        return {slot.name: entropy_bits(torch.bincount(codes[slot.start : slot.stop])) for slot in self.layout.slots}

    def _without_sides(self) -> tuple[Tensor, int | None]:
        codes, half = drop_sides(self.index.cpu().numpy().astype(np.int64), len(self.centres), self._shapes)
        return torch.from_numpy(codes), half

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [slot.shape for slot in self.layout.slots]

    def pack_for_graph(self) -> None:
        """Hold up to `MAX_CODES` different codes as tokens of a few bits."""
        if len(self.centres) <= MAX_CODES:
            codes, half = self._without_sides()
            self._packed = pack_codes(codes) if half is None else PackedPaths(codes, half, self._shapes)
            self.index = self.index[:0]

    @property
    def independent(self) -> bool:
        """True: every weight has its own noise."""
        return True


def unit_sizes(layout: Layout, units: str) -> list[int]:
    """Return the number of weights in each unit."""
    if units == "network":
        return [layout.size]
    if units == "layer":
        return [slot.size for slot in layout.slots]
    if units != "filter":
        return []
    return [size for slot in layout.slots for size in _row_sizes(slot.shape, slot.size)]


def unit_counts(layout: Layout, units: str) -> list[int]:
    """Return the number of units in each slot, which are layers or filters."""
    return [len(_row_sizes(slot.shape, slot.size)) if units == "filter" else 1 for slot in layout.slots]


def _row_sizes(shape: tuple[int, ...], size: int) -> list[int]:
    rows = shape[0] if len(shape) > 1 else 1
    return [size // rows] * rows if rows else []
