"""Data sets in memory: images as bytes, and plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pocketbayes.data.augment import CropFlip
from pocketbayes.data.dataset import Dataset, Info, Pictures
from pocketbayes.data.normalise import Normalise

Numbers = tuple[float, ...]
Scale = tuple[Numbers | None, Numbers | None, float | Numbers, float | Numbers]


class Images(Pictures):
    """Images `(n, channels, height, width)` kept as uint8, normalised (and augmented) when fetched."""

    def __init__(
        self, images: Tensor, labels: Tensor, info: Info, normalise: Normalise, augment: CropFlip | None
    ) -> None:
        self.images, self.labels, self.info = images, labels, info
        self.normalise, self.augment = normalise, augment

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of images as bytes, augmented if requested, and their labels."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images[rows]
        if self.augment is not None:
            images = self.augment(images)
        return images, self.labels[rows]

    def take(self, indices: Tensor) -> Images:
        """Return the images `indices` only."""
        return Images(self.images[indices], self.labels[indices], self.info, self.normalise, self.augment)


class Arrays(Dataset):
    """Rows of two tensors; `x` may be several `Inputs`."""

    def __init__(self, x: Any, y: Tensor, info: Info) -> None:
        self.x, self.y, self.info = x, y, info

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.y)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of rows."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.x[rows], self.y[rows]

    def take(self, indices: Tensor) -> Arrays:
        """Return the rows `indices` only."""
        return Arrays(self.x[indices], self.y[indices], self.info)

    @property
    def scale(self) -> Scale:
        """Means and stds of features (None if unscaled) and of targets."""
        return self.info.mean, self.info.std, self.info.target_mean, self.info.target_std

    def scaled(
        self, mean: Numbers, std: Numbers, target_mean: float | Numbers = 0.0, target_std: float | Numbers = 1.0
    ) -> Arrays:
        """Return the rows with scaled features and targets, as recorded in `info`."""
        x, y = (self.x - torch.tensor(mean)) / torch.tensor(std), self.y
        if y.is_floating_point():
            y = (y - torch.tensor(target_mean)) / torch.tensor(target_std)
        info = replace(self.info, range=None, mean=mean, std=std, target_mean=target_mean, target_std=target_std)
        return Arrays(x, y, info)

    def unscaled(self) -> Arrays:
        """Return the rows in their original units."""
        mean, std, target_mean, target_std = self.scale
        x, y = self.x, self.y
        if mean is not None and std is not None:
            x = x * torch.tensor(std) + torch.tensor(mean)
        if y.is_floating_point():
            y = y * torch.tensor(target_std) + torch.tensor(target_mean)
        return Arrays(x, y, replace(self.info, mean=None, std=None, target_mean=0.0, target_std=1.0))

    def standardised(self, known: Tensor) -> Arrays:
        """Standardise features and regression targets by the mean and std of the rows `known`."""
        features = _moments(self.x[known])
        if not self.y.is_floating_point():
            return self.scaled(*features)
        mean, std = _moments(self.y[known])
        return self.scaled(*features, *((mean[0], std[0]) if len(mean) == 1 else (mean, std)))


def _moments(columns: Tensor) -> tuple[Numbers, Numbers]:
    """Return mean and std of each column; the std of a constant column counts as 1."""
    columns = columns.double()
    std = columns.std(dim=0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return tuple(columns.mean(dim=0).tolist()), tuple(std.tolist())
