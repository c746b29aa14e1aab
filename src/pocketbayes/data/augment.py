"""Random crops and flips of a whole batch.

All random numbers come from torch's global generator on the CPU, so that a run that restores that generator resumes bit
for bit on any device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError, UserError

PadMode = Literal["zero", "reflect"]


@dataclass(frozen=True)
class CropFlip:
    """Augmentation: pad by `pad`, crop to the original size at random, and flip half of the images horizontally."""

    pad: int = 0
    pad_mode: PadMode = "zero"
    flip: bool = False

    def __post_init__(self) -> None:
        """Reject an unknown padding."""
        if self.pad < 0:
            raise UserError(f"pad={self.pad}: must not be negative")
        if self.pad_mode not in get_args(PadMode):
            raise UnknownNameError("padding", self.pad_mode, get_args(PadMode))

    def __call__(self, images: Tensor) -> Tensor:
        """Augment a batch `(n, channels, height, width)`; shape and type are kept."""
        if self.pad:
            images = random_crop(images, self.pad, self.pad_mode)
        if self.flip:
            images = random_flip(images)
        return images


def random_crop(images: Tensor, pad: int, pad_mode: PadMode) -> Tensor:
    """Shift each image by up to `pad` pixels in each direction and fill the border."""
    n, _, height, width = images.shape
    if pad_mode == "reflect":
        if pad >= min(height, width):
            raise UserError(f"pad={pad}: too large to reflect in an image of {height}x{width}")
        # torch's reflection padding does not take bytes.
        images = images[:, :, _reflected(height, pad, images.device)][..., _reflected(width, pad, images.device)]
    else:
        images = F.pad(images, (pad, pad, pad, pad))
    top, left = torch.randint(0, 2 * pad + 1, (2, n)).to(images.device)
    windows = images.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(n, device=images.device), :, top, left]


def random_flip(images: Tensor) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    flipped = (torch.rand(len(images)) < 0.5).to(images.device)
    return torch.where(flipped[:, None, None, None], images.flip(-1), images)


def _reflected(size: int, pad: int, device: torch.device) -> Tensor:
    """Return the indices `pad..1, 0..size-1, size-2..size-1-pad`."""
    position = torch.arange(-pad, size + pad, device=device).abs()
    return torch.where(position < size, position, 2 * (size - 1) - position)
