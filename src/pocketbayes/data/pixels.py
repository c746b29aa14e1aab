"""Normalisation and augmentation of image batches that are stored as bytes.

Random crops and flips draw from torch's global generator on the CPU, so that a run that restores that generator resumes
bit for bit on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UnknownNameError, UserError

Stats = tuple[tuple[float, ...], tuple[float, ...]]
StatsOption = str | float | Sequence[float] | None

# Mean and std of each channel over the training images. CIFAR-100's are those of the weight-sharing paper.
NORMALISATIONS: dict[str, Stats] = {
    "none": ((0.0,), (1.0,)),
    "digits": ((0.3053,), (0.3760,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
PadMode = Literal["zero", "reflect"]
MAX_PAD = 4
"""Largest padding, in sides of the image."""


class Normalise:
    """Conversion of uint8 images `(n, channels, height, width)` to normalised float32."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.mean, self.std = mean, std
        scale = [1 / (255 * s) for s in std]
        shift = [m / s for m, s in zip(mean, std)]
        self._scale = torch.tensor(scale).reshape(-1, 1, 1)
        self._shift = torch.tensor(shift).reshape(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise."""
        return images.float().mul_(self._scale.to(images.device)).sub_(self._shift.to(images.device))


def normalisation(usual: str, channels: int, mean: StatsOption = None, std: StatsOption = None) -> Normalise:
    """Return a data set's normalisation, or the one given by `mean` and `std`.

    Args:
        usual: The data set's entry in `NORMALISATIONS`.
        channels: The number of channels; a single number applies to all.
        mean: The name of another data set ("imagenet"), a number, or a number per channel. A name also sets `std` if
            that is not given, and vice versa.
        std: Likewise.
    """
    if isinstance(mean, str) and std is None:
        std = mean
    elif isinstance(std, str) and mean is None:
        mean = std
    values = [_values(kind, usual, channels, option) for kind, option in enumerate((mean, std))]
    if not all(math.isfinite(value) for value in values[0]):
        raise UserError(f"mean={mean}: must be finite in every channel")
    if not all(0 < value < math.inf for value in values[1]):
        raise UserError(f"std={std}: must be positive and finite in every channel")
    return Normalise(values[0], values[1])


def _values(kind: int, usual: str, channels: int, option: StatsOption) -> tuple[float, ...]:
    if option is None:
        option = usual
    if isinstance(option, str):
        if option not in NORMALISATIONS:
            raise UnknownNameError("normalisation", option, NORMALISATIONS)
        option = NORMALISATIONS[option][kind]
    values = (float(option),) if isinstance(option, int | float) else tuple(float(value) for value in option)
    if len(values) == 1:
        values *= channels
    if len(values) != channels:
        raise UserError(f"{('mean', 'std')[kind]}={option}: {len(values)} values for {channels} channels or features")
    return values


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
        check_choice("padding", self.pad_mode, get_args(PadMode))

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
    if pad > MAX_PAD * max(height, width):
        raise UserError(f"pad={pad}: too large for an image of {height}x{width}")
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
