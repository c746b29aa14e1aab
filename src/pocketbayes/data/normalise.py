"""Normalisation of bytes per channel: `(x / 255 - mean) / std`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
    if min(values[1]) <= 0:
        raise UserError(f"std={std}: must be positive in every channel")
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
        raise UserError(f"{('mean', 'std')[kind]}={option}: {len(values)} values for images of {channels} channels")
    return values
