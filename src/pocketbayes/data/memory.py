"""Data sets that fit into memory: images as bytes, and plain arrays."""

from __future__ import annotations

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
