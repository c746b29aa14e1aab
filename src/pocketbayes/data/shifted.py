"""Image data sets under a corruption, rotation or noise, applied per batch, and the published CIFAR-C files.

`shift` is imported where it is used, since scipy is slow to import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.dataset import Dataset, Info, Pictures
from pocketbayes.data.memory import Images
from pocketbayes.data.normalise import StatsOption, normalisation
from pocketbayes.data.request import Request
from pocketbayes.data.vision import IMAGE_SETS

Change = Callable[[NDArray[np.uint8], int], NDArray[Any]]
"""A function from images (n, h, w, c) and the index of the first one to values from 0 to 255."""


class Shifted(Dataset):
    """A data set whose images are changed when fetched.

    The change of an image depends only on its index in `pictures`.
    """

    def __init__(self, pictures: Pictures, change: Change, places: Tensor | None = None) -> None:
        self.pictures, self.change, self.info = pictures, change, pictures.info
        self.places = torch.arange(len(pictures)) if places is None else places

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.places)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of changed, then normalised images, and their labels."""
        places = self.places[torch.as_tensor(indices, dtype=torch.int64)].tolist()
        pixels, labels = self.pictures.pixels(places)
        images = np.ascontiguousarray(pixels.permute(0, 2, 3, 1).numpy())
        breaks = (np.diff(places) != 1).nonzero()[0] + 1
        runs = zip(np.split(images, breaks), (places[start] for start in (0, *breaks)))
        changed = np.concatenate([self.change(run, first) for run, first in runs])
        return self.pictures.normalise(torch.from_numpy(changed).permute(0, 3, 1, 2).contiguous()), labels

    def take(self, indices: Tensor) -> Shifted:
        """Return the images `indices` only, with unchanged shifts."""
        return Shifted(self.pictures, self.change, self.places[indices])


def corrupted(pictures: Pictures, name: str, severity: int, seed: int = 0) -> Shifted:
    """Apply one of the 19 corruptions (see `shift.corrupt`)."""
    from pocketbayes.data.shift import corrupt

    return Shifted(pictures, lambda images, first: corrupt(images, name, severity, seed, first_index=first))


def rotated(pictures: Pictures, degrees: float) -> Shifted:
    """Rotate counter-clockwise (see `shift.rotate`)."""
    from pocketbayes.data.shift import rotate

    return Shifted(pictures, lambda images, _: rotate(images, degrees))


def noisy(pictures: Pictures, snr_db: float, seed: int = 0) -> Shifted:
    """Add Gaussian noise at a signal-to-noise ratio without clipping (see `shift.noise_db`)."""
    from pocketbayes.data.shift import noise_db

    return Shifted(pictures, lambda images, first: 255 * noise_db(images, snr_db, seed, first_index=first))


@dataclass(frozen=True)
class Published:
    """The folder of a data set's published corruptions inside the data folder."""

    base: str
    folder: str


def cifar_c(
    spec: Published,
    request: Request,
    *,
    corruption: str,
    severity: int,
    mean: StatsOption = None,
    std: StatsOption = None,
) -> Dataset:
    """Load one corruption at one severity from the published `.npy` files.

    Args:
        spec: The data set.
        request: The common settings; the split must be "test".
        corruption: One of the 19 file names.
        severity: 1 to 5.
        mean: As for the original data set.
        std: Likewise.
    """
    from pocketbayes.data.shift import read_cifar_c

    if request.split != "test":
        raise UserError(f"data set {request.name!r} has a 'test' split only, no {request.split!r}")
    folder = request.folder / spec.folder
    if not folder.is_dir():
        raise request.missing("folder", folder)
    images, labels = read_cifar_c(folder, corruption, severity)
    names = IMAGE_SETS[spec.base].class_names
    pixels = torch.from_numpy(np.array(images.transpose(0, 3, 1, 2), order="C"))
    normalise = normalisation(spec.base, pixels.shape[1], mean, std)
    shape = tuple(pixels.shape[1:])
    info = Info(request.name, "classification", len(names), names, shape, normalise.mean, normalise.std)
    return Images(pixels, torch.from_numpy(labels), info, normalise, None)


PUBLISHED = {"cifar10-c": Published("cifar10", "CIFAR-10-C"), "cifar100-c": Published("cifar100", "CIFAR-100-C")}
