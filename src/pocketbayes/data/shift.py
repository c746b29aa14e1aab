"""Distribution shift of images: corruptions, rotation, and noise by signal-to-noise ratio, applied per batch.

`corrupt` applies the 19 corruptions of CIFAR-C and ImageNet-C at five severities to images of any size, seeded by
(seed, name, severity, index), so that an image's corruption is independent of its batch. The parameters are those
published for a shorter side of 32 (CIFAR-C), 64 (Tiny ImageNet-C) and 224 pixels (ImageNet-C), interpolated linearly in
log(side), and constant below 32 and above 224. `corruptions/` lists the differences from the published images, which
the data sets `cifar10-c` and `cifar100-c` read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError, refusing
from pocketbayes.base.seeds import image_generator
from pocketbayes.data.corruptions.severities import PARAMETERS, parameters
from pocketbayes.data.dataset import Dataset, Images, Info, Pictures
from pocketbayes.data.pixels import StatsOption, normalisation
from pocketbayes.data.request import Request
from pocketbayes.data.vision import IMAGE_SETS

Change = Callable[[NDArray[np.uint8], int], NDArray[Any]]
"""A function from images (n, h, w, c) and the index of the first one to values from 0 to 255."""
CORRUPTIONS: tuple[str, ...] = tuple(PARAMETERS)
"""All 19, named like the published files."""
ORIGINAL_15: tuple[str, ...] = CORRUPTIONS[:15]
"""The benchmark; the other four are meant for choosing hyperparameters."""
SEVERITIES = (1, 2, 3, 4, 5)
_VALUES_AT_ONCE = 1 << 20


class Shifted(Dataset):
    """A data set whose images are changed when fetched.

    The change of an image depends only on its index in `pictures`.
    """

    per_row = ("places",)

    def __init__(self, pictures: Pictures, change: Change) -> None:
        self.pictures, self.change, self.info = pictures, change, pictures.info
        self.places = torch.arange(len(pictures))

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of changed, then normalised images, and their labels."""
        places = self.places[torch.as_tensor(indices, dtype=torch.int64)].tolist()
        pixels, labels = self.pictures.pixels(places)
        images = np.ascontiguousarray(pixels.permute(0, 2, 3, 1).numpy())
        breaks = (np.diff(places) != 1).nonzero()[0] + 1
        runs = zip(np.split(images, breaks), (places[start] for start in (0, *breaks)))
        changed = np.concatenate([self.change(run, first) for run, first in runs])
        return self.pictures.normalise(torch.from_numpy(changed).permute(0, 3, 1, 2).contiguous()), labels


def corrupted(pictures: Pictures, name: str, severity: int, seed: int = 0) -> Shifted:
    """Apply one of the 19 corruptions (see `corrupt`)."""
    return Shifted(pictures, lambda images, first: corrupt(images, name, severity, seed, first_index=first))


def rotated(pictures: Pictures, degrees: float) -> Shifted:
    """Rotate counter-clockwise (see `rotate`)."""
    return Shifted(pictures, lambda images, _: rotate(images, degrees))


def noisy(pictures: Pictures, snr_db: float, seed: int = 0) -> Shifted:
    """Add Gaussian noise at a signal-to-noise ratio without clipping (see `noise_db`)."""
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


def corrupt(
    images: NDArray[np.uint8], name: str, severity: int, seed: int = 0, *, first_index: int = 0
) -> NDArray[np.uint8]:
    """Return corrupted copies of images.

    Args:
        images: (n, h, w, c), or one image (h, w, c) or (h, w); bytes, with c = 1 (gray) or 3 (RGB).
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: of all draws.
        first_index: index of the first image in its data set, so that batches give the same result as the whole set.

    Returns:
        The same shape and type.
    """
    from pocketbayes.data.corruptions import functions  # scipy is slow to import

    _check_choice(name, severity)
    batch = _as_batch(images)
    function, values = getattr(functions, name), parameters(name, severity, min(batch.shape[1:3]))
    corrupted = np.empty_like(batch)
    size = max(1, _VALUES_AT_ONCE // max(1, batch[0].size)) if len(batch) else 1
    for start in range(0, len(batch), size):
        chunk = batch[start : start + size]
        places = range(first_index + start, first_index + start + len(chunk))
        rngs = [image_generator(seed, name, severity, place) for place in places]
        corrupted[start : start + size] = np.rint(255 * np.clip(function(chunk / 255, rngs, *values), 0, 1))
    return corrupted.reshape(images.shape)


def rotate(images: NDArray[np.uint8], degrees: float) -> NDArray[np.uint8]:
    """Rotate images counter-clockwise about the centre with linear interpolation, black outside.

    Args:
        images: as for `corrupt`.
        degrees: angle; multiples of 90 move pixels without changing them.
    """
    from scipy import ndimage

    turned = ndimage.rotate(_as_batch(images), degrees, axes=(2, 1), reshape=False, order=1)
    return np.asarray(turned).reshape(images.shape)


def noise_db(images: NDArray[Any], snr_db: float, seed: int = 0, *, first_index: int = 0) -> NDArray[np.float32]:
    """Compute `x + e` with `10 log10(sum x^2 / sum e^2) = snr_db` exactly for each image, before normalisation.

    The noise is Gaussian, scaled to the exact power, and not clipped. An image has the same noise, up to scale, at
    every ratio.

    Args:
        images: (n, ...) bytes, divided by 255, or real numbers.
        snr_db: signal-to-noise ratio in decibels.
        seed: of the noise.
        first_index: index of the first image in its data set.
    """
    signal = images / 255 if images.dtype == np.uint8 else images.astype(np.float64)
    axes = tuple(range(1, signal.ndim))
    places = range(first_index, first_index + len(signal))
    noise = np.stack(
        [image_generator(seed, "noise_db", 0, place).standard_normal(signal.shape[1:]) for place in places]
    )
    power, drawn = (np.square(values).sum(axis=axes, keepdims=True) for values in (signal, noise))
    return np.asarray(signal + noise * np.sqrt(power / drawn / 10 ** (snr_db / 10)), dtype=np.float32)


def read_cifar_c(folder: str | Path, name: str, severity: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels from the published `.npy` files of CIFAR-10-C or CIFAR-100-C.

    The images are memory-mapped.
    """
    _check_choice(name, severity)
    images, labels = (_mapped(Path(folder) / f"{stem}.npy") for stem in (name, "labels"))
    each, rest = divmod(len(images), len(SEVERITIES)) if images.ndim == 4 else (0, 1)
    if rest or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise UserError(
            f"{Path(folder) / name}.npy is not a CIFAR-C file: expected bytes (5 n, h, w, c) and 5 n labels, "
            f"found {images.dtype} {images.shape} and labels {labels.shape}"
        )
    part = slice((severity - 1) * each, severity * each)
    return images[part], labels[part].astype(np.int64)


def _mapped(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise UserError(f"no file {path}: unpack the published files there, or use `corrupt`")
    with refusing(path, "a plain .npy file"):
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _check_choice(name: str, severity: int) -> None:
    check_choice("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise UserError(f"severity must be one of 1, 2, 3, 4, 5, not {severity!r}")


def _as_batch(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return any of the allowed shapes as bytes (n, h, w, c)."""
    if images.dtype != np.uint8:
        raise UserError(f"images are {images.dtype}: give bytes (uint8, 0 to 255), before any normalisation")
    batch = {2: images[None, ..., None], 3: images[None]}.get(images.ndim, images)
    if batch.ndim != 4 or batch.shape[-1] not in (1, 3):
        raise UserError(
            f"images have shape {images.shape}: give (n, h, w, c), (h, w, c) or (h, w) with c = 1 or 3 "
            "(for a stack of gray images: images[..., None])"
        )
    return batch
