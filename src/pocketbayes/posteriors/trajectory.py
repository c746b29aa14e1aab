"""The path of the weights in training: the present values, and the moments of those it passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.coding import MEAN, Coding
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.lowrank import LowRank
from pocketbayes.posteriors.priors import Prior


class Trajectory(Posterior):
    """w = mean, the present weights, beside the running moments of all that were collected.

    As a posterior it is a point. Everything it remembers is a buffer, so a checkpoint holds it.

    Attributes:
        mean: The present weights (n,).
        count: How many were collected.
        average: Their mean (n,).
        squares: The sum of squared deviations from it (n,): Welford's, for E w^2 - (E w)^2 cancels.
        deviations: The last `rank` deviations from the mean of their time (rank, n).
        points: The mean of the model's point parameters at those times, flat.
    """

    name = "trajectory"
    tensors: ClassVar = {
        "mean": MEAN,
        "count": Coding("count", (), low=0),
        "average": MEAN,
        "squares": Coding("std", ("weights",), low=0),
        "deviations": Coding("std", ("rank", "weights")),
        "points": Coding("mean", ("points",)),
    }

    def __init__(self, layout: Layout, mean: Tensor, rank: int, points: int) -> None:
        """Start at `mean` with nothing collected."""
        super().__init__(layout)
        self.mean = nn.Parameter(mean.detach().clone())
        self.count: Tensor
        self.average: Tensor
        self.squares: Tensor
        self.deviations: Tensor
        self.points: Tensor
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=mean.device))
        self.register_buffer("average", torch.zeros_like(self.mean.detach()))
        self.register_buffer("squares", torch.zeros_like(self.mean.detach()))
        self.register_buffer("deviations", mean.new_zeros(rank, mean.numel()))
        self.register_buffer("points", mean.new_zeros(points))

    @torch.no_grad()
    def collect(self, points: Tensor) -> None:
        """Take the present weights and point parameters into the moments."""
        self.count += 1
        number = int(self.count)
        change = self.mean - self.average
        self.average += change / number
        deviation = self.mean - self.average
        self.squares += change * deviation
        self.deviations[(number - 1) % len(self.deviations)] = deviation
        self.points += (points - self.points) / number

    def gaussian(self, scale: float = 1.0) -> LowRank:
        """Compute N(average, scale (diag(var) + D D^T / (K - 1)) / 2), D the K last deviations.

        (Maddox et al. 2019, Eq. 1).
        """
        columns = min(int(self.count), len(self.deviations))
        std = (self.squares / (self.count * 2 / scale)).sqrt()
        factor = self.deviations[:columns].T * (scale / (2 * (columns - 1))) ** 0.5
        return LowRank(self.layout, self.average, std, factor)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the present weights, and std 0."""
        return self.mean, torch.zeros_like(self.mean)

    @property
    def noise_size(self) -> int:
        """0: a point draws nothing."""
        return 0

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return the present weights."""
        return self.mean

    def kl(self, prior: Prior) -> Tensor:
        """Return 0: a point value has no KL."""
        return self.mean.new_zeros(())

    def stored(self) -> dict[str, int]:
        """Return the present weights and everything remembered."""
        return {"means": self.mean.numel(), "moments": 2 * self.mean.numel(), "deviations": self.deviations.numel()}

    @classmethod
    def restore(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """Build from its tensors, bit for bit."""
        self = cls(layout, tensors["mean"], len(tensors["deviations"]), tensors["points"].numel())
        self.load_state_dict(dict(tensors))
        return self
