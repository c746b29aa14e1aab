"""Data sets by name, and `load`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import NoSplitError, UnknownNameError, UserError
from pocketbayes.base.naming import naming_arguments
from pocketbayes.data.arrays import npz
from pocketbayes.data.dataset import Dataset
from pocketbayes.data.folders import image_folder, imagenet
from pocketbayes.data.request import Request, Split, choose
from pocketbayes.data.segmentation import cityscapes, masks
from pocketbayes.data.shift import PUBLISHED, cifar_c
from pocketbayes.data.tabular import toy_cubic, uci
from pocketbayes.data.vision import IMAGE_SETS, image_set

LOADERS: dict[str, Callable[..., Dataset]] = {
    **{name: partial(image_set, IMAGE_SETS[name]) for name in IMAGE_SETS},
    **{name: partial(cifar_c, PUBLISHED[name]) for name in PUBLISHED},
    "imagefolder": image_folder,
    "imagenet": imagenet,
    "cityscapes": cityscapes,
    "masks": masks,
    "uci": uci,
    "toy-cubic": toy_cubic,
    "npz": npz,
}


def names() -> list[str]:
    """Return the names that `load` accepts."""
    return sorted(LOADERS)


def folder_of(data_dir: str | Path | None = None) -> Path:
    """Return the data folder: as given, else the environment variable POCKETBAYES_DATA, else `./data`."""
    return Path(data_dir or os.environ.get("POCKETBAYES_DATA") or "data").expanduser()


COMMON = ("augment", "subset", "val_fraction", "seed", "download")
"""The options of all data sets."""


def load(
    name: str,
    split: Split = "train",
    data_dir: str | Path | None = None,
    *,
    augment: bool = False,
    subset: int | Sequence[int] | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
    download: bool = False,
    **options: Any,
) -> Dataset:
    """Load one split of a data set.

    Args:
        name: One of `names()`.
        split: "train", "val" or "test". If a data set has no validation split, "val" is a fraction of the training rows
            chosen by `seed`, and "train" is the rest.
        data_dir: The data folder; by default the environment variable POCKETBAYES_DATA, else `./data`.
        augment: Augment the training split as in the papers; other splits are never augmented.
        subset: The number of rows, chosen by `seed` (at most all for validation and test), or a list of rows.
        val_fraction: The fraction of training rows used for validation; 0 keeps all for training.
        seed: Seed of the validation split and of `subset`.
        download: Download missing files if torchvision can.
        **options: Options of this data set, such as `set=` for "uci" or `mean=` and `std=` for images.

    Raises:
        UserError: If a name, split or option is unknown, files are missing or broken, or the split is empty.
    """
    if name not in LOADERS:
        raise unknown(name)
    check_choice("split", split, get_args(Split))
    if not 0 <= val_fraction < 1:
        raise UserError(f"val_fraction={val_fraction}: must be at least 0 and below 1")
    if seed < 0:
        raise UserError(f"seed={seed}: must be a non-negative integer")
    request = Request(name, split, folder_of(data_dir), augment, download, val_fraction, seed)
    _check_options(name, options)
    dataset = naming_arguments(LOADERS[name])(request, **options)
    if subset is not None and len(dataset):
        if isinstance(subset, int) and split != "train":
            subset = min(subset, len(dataset))
        dataset = dataset.take(choose(len(dataset), subset, seed))
    if not len(dataset):
        raise NoSplitError(f"data set {name!r}: its {split!r} split is empty with val_fraction={val_fraction}")
    return dataset


def unknown(name: str) -> UserError:
    """Build the error for an unknown name, with advice for a folder or a file."""
    if os.path.isdir(name):  # False for text that cannot be a path
        return UserError(f"{name!r} is a folder: pb.data.load('imagefolder', split, path={name!r}) reads its images")
    if name.lower().endswith((".npz", ".csv")):
        return UserError(f"{name!r} is a file: pb.data.load('npz', split, path={name!r}) reads it")
    return UnknownNameError("data set", name, LOADERS, "there is no such file or folder; ")


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Reject the first option that is unknown or missing."""
    known = {
        parameter.name: parameter.default is parameter.empty
        for parameter in inspect.signature(LOADERS[name]).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of data set {name!r}", option, (*known, *COMMON))
    for option, required in known.items():
        if required and option not in options:
            raise UserError(f"data set {name!r} needs the option {option}=...")
