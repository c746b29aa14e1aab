"""Monte Carlo dropout as a storage: a value per weight and a dropout rate of input units."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.coding import MEAN
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior

Units = tuple[int, int]
"""The arrangement of a weight's input units: its view (groups, outputs, units per group, positions) has one mask entry
per (group, unit); (0, 0) for a weight that is never dropped."""


class Dropped(Posterior):
    """Dropout: `w_ij = mean_ij z_j / (1 - p)`, `z_j ~ Bernoulli(1 - p)` per input unit j (Gal & Ghahramani 2016).

    Mean and std are exact: `std = |mean| sqrt(p / (1 - p))`. The weights of a unit are dropped together, so they are
    not independent, and the distribution is not Gaussian. A draw is a step function of its noise: unit j is kept if its
    noise exceeds the normal quantile of p. `local` and `flipout` both drop inputs per example, which flipout
    approximates for Gaussians; other rule tables use mean and std.
    """

    name = "dropped"
    drops_units = True
    tensors: ClassVar = {"mean": MEAN}

    def __init__(self, layout: Layout, mean: Tensor, rate: float, units: Sequence[Units]) -> None:
        """Take the values, the rate p, and the units of each slot (see `input_units`)."""
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())
        self.rate, self.units = float(rate), units
        self.derive()

    def derive(self) -> None:
        """Reject a rate or units that are impossible."""
        if not 0 <= self.rate < 1:
            raise UserError(f"the rate of dropout must be in [0, 1), not {self.rate}")
        self._quantile = NormalDist().inv_cdf(self.rate) if self.rate > 0 else -math.inf
        self.units = [(int(groups), int(inner)) for groups, inner in self.units]
        if len(self.units) != len(self.layout.slots):
            raise UserError(f"units for {len(self.units)} weights, but the layout has {len(self.layout.slots)}")
        for (groups, inner), slot in zip(self.units, self.layout.slots):
            outer, inputs = (*slot.shape, 0, 0)[:2]
            fits = (groups, inner) == (outer, 1) or (inner == inputs and groups > 0 and outer % groups == 0)
            if (groups, inner) != (0, 0) and not (fits and groups * inner):
                raise UserError(f"{groups} groups of {inner} units in {slot.name!r} of shape {slot.shape}")

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the values, and |mean| sqrt(p / (1 - p)) in the layers that are dropped."""
        spread = (self.rate / (1 - self.rate)) ** 0.5
        stds = [
            view.abs() * spread if groups else torch.zeros_like(view)
            for (groups, _), view in zip(self.units, self.layout.views(self.mean))
        ]
        return self.mean, torch.cat([std.flatten() for std in stds])

    @property
    def noise_size(self) -> int:
        """One number per input unit."""
        return sum(groups * inner for groups, inner in self.units)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return one draw: units whose noise is below the quantile of p are dropped, the others scaled up."""
        noise = self._noise(noise, self.mean)
        masks = ((noise > self._quantile).to(self.mean.dtype) / (1 - self.rate)).split([g * i for g, i in self.units])
        parts = []
        for (groups, inner), mask, view in zip(self.units, masks, self.layout.views(self.mean)):
            if groups:
                positions = view.shape[2:].numel() if view.shape[1] == inner else 1
                view = view.reshape(groups, -1, inner, positions) * mask.view(groups, 1, inner, 1)
            parts.append(view.flatten())
        return torch.cat(parts)

    def _project(self, gradient: Tensor) -> Tensor:
        """Compute sqrt(p / (1 - p)) sum_i dy/dw_i mean_i over each unit, since a mask has no derivative."""
        spread = (self.rate / (1 - self.rate)) ** 0.5
        parts = [gradient.new_zeros(len(gradient), 0)]
        for (groups, inner), slot in zip(self.units, self.layout.slots):
            if groups:
                change = gradient[:, slot.start : slot.stop] * self.mean[slot.start : slot.stop] * spread
                positions = torch.Size(slot.shape[2:]).numel() if slot.shape[1] == inner else 1
                parts.append(change.view(len(gradient), groups, -1, inner, positions).sum((2, 4)).flatten(1))
        return torch.cat(parts, 1)

    def kl(self, prior: Prior) -> Tensor:
        """Return 0: a discrete distribution has no finite KL to a density; weight decay replaces it, as for a point."""
        return self.mean.new_zeros(())

    def stored(self) -> dict[str, int]:
        """Return the counts of values and rates."""
        return {"means": self.mean.numel(), "rates": 1}


def input_units(model: nn.Module, layout: Layout) -> list[Units]:
    """Return the arrangement of every slot's input units.

    The second axis of a weight holds its inputs, separately for each group of a convolution; a transposed convolution
    has them in its first axis. The first layer is not dropped, since its inputs are the data, and a bias has no input.
    """
    first = _layer(layout.slots[0].name)
    units: list[Units] = []
    for slot in layout.slots:
        module = model.get_submodule(_layer(slot.name))
        if _layer(slot.name) == first or len(slot.shape) < 2:
            units.append((0, 0))
        elif isinstance(module, nn.modules.conv._ConvTransposeNd):
            units.append((slot.shape[0], 1))
        else:
            groups = module.groups if isinstance(module, nn.modules.conv._ConvNd) else 1
            units.append((groups, slot.shape[1]))
    return units


def _layer(name: str) -> str:
    """Return the path of a weight's layer; for a parametrised weight, the layer itself."""
    return re.split(r"(?:^|\.)parametrizations\.", name.rpartition(".")[0])[0]
