"""Preparation of other data like a network's own: the same size, normalisation and class order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pocketbayes.base.errors import UserError
from pocketbayes.data.dataset import Dataset, Info, Pictures
from pocketbayes.data.folders import ImageFiles
from pocketbayes.data.memory import Arrays
from pocketbayes.data.normalise import Normalise


def match_preprocessing(other: Dataset, own: Info) -> Dataset:
    """Prepare data like those described by `own`.

    Images get the size and normalisation, tables the scale of features and targets. Settings that already match, or
    that `own` does not specify, are unchanged.

    Raises:
        UserError: If images have another number of channels.
    """
    if isinstance(other, Pictures) and len(own.input_shape) == 3:
        (channels, *size), shape = own.input_shape, other.info.input_shape
        if shape[0] != channels:
            raise UserError(f"data set {other.info.name!r} has {shape[0]} channels, but {own.name!r} has {channels}")
        if own.mean is not None and own.std is not None and (other.info.mean, other.info.std) != (own.mean, own.std):
            other = copy.copy(other)
            other.normalise = Normalise(own.mean, own.std)
            other.info = replace(other.info, mean=own.mean, std=own.std)
        return other if list(shape[1:]) == size else Resized(other, *size)
    if isinstance(other, Arrays) and own.mean is not None and own.std is not None and other.x.ndim == 2:
        scale = (own.mean, own.std, own.target_mean, own.target_std)
        if other.x.shape[1] == len(own.mean) and other.scale != scale:
            return other.unscaled().scaled(*scale)
    if isinstance(other, Arrays) and own.mean is None and own.name == other.info.name:
        return other.unscaled()  # a table of the same kind that training took as it was
    return other


def match_classes(files: ImageFiles, own: Info) -> ImageFiles:
    """Relabel image files in the order of the network's class names, of which some may be missing.

    Raises:
        UserError: If a folder is not named after one of the classes.
    """
    names, known = files.info.class_names, own.class_names
    if names is None or known is None or names == known:
        return files
    strange = next((name for name in names if name not in known), None)
    if strange is not None:
        raise UserError(f"{files.root}: folder {strange!r} is not one of the network's classes ({_shortened(known)})")
    table = torch.tensor([known.index(name) for name in names])
    files = copy.copy(files)
    files.labels = table[files.labels]
    files.info = replace(files.info, classes=len(known), class_names=known)
    return files


def _shortened(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class Resized(Pictures):
    """The images of a data set, scaled to `height` x `width` when fetched."""

    def __init__(self, pictures: Pictures, height: int, width: int) -> None:
        self.pictures, self.normalise = pictures, pictures.normalise
        self.info = replace(pictures.info, input_shape=(pictures.info.input_shape[0], height, width))

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.pictures)

    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the pictures `indices` as bytes, and their labels."""
        images, labels = self.pictures.pixels(indices)
        scaled = interpolate(images.float(), self.info.input_shape[1:], mode="bilinear", antialias=True)
        return scaled.round().clamp(0, 255).to(torch.uint8), labels

    def take(self, indices: Tensor) -> Resized:
        """Return the pictures `indices` only."""
        kept = self.pictures.take(indices)
        assert isinstance(kept, Pictures), "a part of pictures is pictures"
        return Resized(kept, *self.info.input_shape[1:])
