"""Data sets that fit into memory: images as bytes, and plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from pocketbayes.data.augment import CropFlip
from pocketbayes.data.dataset import Dataset, Info, Pictures
from pocketbayes.data.normalise import Normalise


class Images(Pictures):
    """Images `(n, channels, height, width)` kept as uint8, normalised (and augmented) when fetched."""

    def __init__(
        self, images: Tensor, labels: Tensor, info: Info, normalise: Normalise, augment: CropFlip | None
    ) -> None:
        self.images, self.labels, self.info = images, labels, info
        self.normalise, self.augment = normalise, augment

    def __len__(self) -> int:
        """How many images."""
        return len(self.labels)

    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch of images as bytes, augmented if they are to be, and their labels."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images[rows]
        if self.augment is not None:
            images = self.augment(images)
        return images, self.labels[rows]

    def take(self, indices: Tensor) -> Images:
        """The images `indices` only."""
        return Images(self.images[indices], self.labels[indices], self.info, self.normalise, self.augment)


class Arrays(Dataset):
    """Rows of two tensors, as they are."""

    def __init__(self, x: Tensor, y: Tensor, info: Info) -> None:
        self.x, self.y, self.info = x, y, info

    def __len__(self) -> int:
        """How many rows."""
        return len(self.y)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch of rows."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.x[rows], self.y[rows]

    def take(self, indices: Tensor) -> Arrays:
        """The rows `indices` only."""
        return Arrays(self.x[indices], self.y[indices], self.info)

    def scaled(
        self, mean: Sequence[float], std: Sequence[float], target_mean: float = 0.0, target_std: float = 1.0
    ) -> Arrays:
        """The same rows, features and targets shifted and divided, which `info` keeps."""
        info = dataclasses.replace(
            self.info, mean=tuple(mean), std=tuple(std), target_mean=target_mean, target_std=target_std
        )
        y = (self.y - target_mean) / target_std if self.y.is_floating_point() else self.y
        return Arrays((self.x - torch.tensor(mean)) / torch.tensor(std), y, info)

    def standardised(self, known: Tensor) -> Arrays:
        """The same rows; features, and the targets of a regression, with mean 0 and std 1 over the rows `known`."""
        mean, std = _moments(self.x[known])
        if not self.y.is_floating_point():
            return self.scaled(mean.tolist(), std.tolist())
        target_mean, target_std = _moments(self.y[known].reshape(-1, 1))
        return self.scaled(mean.tolist(), std.tolist(), target_mean.item(), target_std.item())


def _moments(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of each column; a constant column says nothing, and must not become NaN: its std counts as 1."""
    columns = columns.double()
    std = columns.std(dim=0, correction=0)
    return columns.mean(dim=0), torch.where(std > 0, std, torch.ones_like(std))
