"""The trajectory of the weights in training: current values and moments of collected ones."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pocketbayes.posteriors.coding import MEAN, Coding
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.lowrank import LowRank
from pocketbayes.posteriors.point import Point


class Trajectory(Point):
    """The current weights with running moments of the collected ones.

    As a posterior it is a point. All moments are buffers, so checkpoints include them.

    Attributes:
        mean: The current weights (n,).
        count: The number of collected weight vectors.
        average: Their mean (n,).
        squares: The sum of squared deviations (n,) by Welford's algorithm, since `E w^2 - (E w)^2` cancels.
        deviations: The last `rank` deviations from the running mean (rank, n).
        points: The running mean of the model's point parameters, flat.
    """

    name = "trajectory"
    tensors: ClassVar = {
        "mean": MEAN,
        "count": Coding("count", (), low=0),
        "average": Coding("mean", ("weights",), trained=False, counted="moments"),
        "squares": Coding("std", ("weights",), low=0, trained=False, counted="moments"),
        "deviations": Coding("std", ("rank", "weights"), trained=False, counted="deviations"),
        "points": Coding("mean", ("points",), trained=False, counted="moments"),
    }

    def __init__(self, layout: Layout, mean: Tensor, rank: int, points: int) -> None:
        """Start at `mean` with nothing collected."""
        super().__init__(layout, mean)
        self.count: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=mean.device))
        self.average: Tensor = nn.Buffer(torch.zeros_like(mean))
        self.squares: Tensor = nn.Buffer(torch.zeros_like(mean))
        self.deviations = nn.Buffer(mean.new_zeros(rank, mean.numel()))
        self.points: Tensor = nn.Buffer(mean.new_zeros(points))

    @torch.no_grad()
    def collect(self, points: Tensor) -> None:
        """Add the current weights and point parameters to the moments."""
        self.count += 1
        number = int(self.count)
        change = self.mean - self.average
        self.average += change / number
        deviation = self.mean - self.average
        self.squares += change * deviation
        self.deviations[(number - 1) % len(self.deviations)] = deviation
        self.points += (points - self.points) / number

    def gaussian(self, scale: float = 1.0) -> LowRank:
        """Return `N(average, scale (diag(var) + D D^T / (K - 1)) / 2)`, D the K last deviations (SWAG)."""
        columns = min(int(self.count), len(self.deviations))
        std = (self.squares / (self.count * 2 / scale)).sqrt()
        factor = self.deviations[:columns].T * (scale / (2 * (columns - 1))) ** 0.5
        return LowRank(self.layout, self.average, std, factor)
