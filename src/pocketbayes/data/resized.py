"""Pictures of another size than their data set keeps them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pocketbayes.data.dataset import Pictures


class Resized(Pictures):
    """The pictures of a data set, scaled to `height` x `width` as they are fetched."""

    def __init__(self, pictures: Pictures, height: int, width: int) -> None:
        self.pictures, self.normalise = pictures, pictures.normalise
        self.info = replace(pictures.info, input_shape=(pictures.info.input_shape[0], height, width))

    def __len__(self) -> int:
        """How many pictures."""
        return len(self.pictures)

    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The pictures `indices` as bytes, and their labels."""
        images, labels = self.pictures.pixels(indices)
        scaled = interpolate(images.float(), self.info.input_shape[1:], mode="bilinear", antialias=True)
        return scaled.round().clamp(0, 255).to(torch.uint8), labels

    def take(self, indices: Tensor) -> Resized:
        """The pictures `indices` only."""
        kept = self.pictures.take(indices)
        assert isinstance(kept, Pictures), "a part of pictures is pictures"
        return Resized(kept, *self.info.input_shape[1:])
