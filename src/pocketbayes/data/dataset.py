"""Data sets: rows `(x, y)` fetched in batches, an `Info` that describes them, and images or arrays in memory."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate
from typing_extensions import Self

from pocketbayes.base.errors import UserError
from pocketbayes.data.pixels import CropFlip, Normalise

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Task = Literal["classification", "regression", "segmentation"]
LATE_FIELDS = frozenset({"interpolation", "inputs", "range", "features"})
"""Fields of `Info` that files of older versions lack."""
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
"""Pillow's interpolation modes."""
_AT_ONCE = 16
"""Rows per read, since images of segmentation are large."""
Numbers = tuple[float, ...]
Scale = tuple[Numbers | None, Numbers | None, float | Numbers, float | Numbers]


@dataclass(frozen=True)
class Info:
    """A description of a data set.

    Attributes:
        name: The name it was loaded by.
        task: The task, which determines the shape of `y`: `(n,)`, `(n, targets)` or `(n, height, width)`.
        classes: The number of classes, `None` for regression.
        class_names: One name per class, if known.
        input_shape: The shape of one `x`, without the batch.
        mean: The mean subtracted from each channel (of values in 0..1) or feature.
        std: The divisor of each channel or feature.
        ignore_index: The label that losses and scores ignore.
        target_mean: For regression, the mean subtracted from `y`, one number or one per target.
        target_std: For regression, the divisor of `y`; `y * target_std + target_mean` is in the original unit.
        crop_fraction: For image files: the shorter side is scaled to the input's size divided by this, then the centre
            is cropped; `None` scales the whole image, whatever its shape.
        interpolation: For image files, Pillow's name of the interpolation.
        inputs: For models of several inputs, the name, type and shape of each; `input_shape` is that of the first.
        range: For tables that are not standardised, the smallest and largest feature.
        features: For tables, one name per feature, if known.
    """

    name: str
    task: Task
    classes: int | None
    class_names: tuple[str, ...] | None
    input_shape: tuple[int, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    ignore_index: int | None = None
    target_mean: float | tuple[float, ...] = 0.0
    target_std: float | tuple[float, ...] = 1.0
    crop_fraction: float | None = None
    interpolation: str = "bilinear"
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    range: tuple[float, float] | None = None
    features: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for files; later fields are included only if they differ from their default."""
        late = {f.name: f.default for f in fields(self) if f.name in LATE_FIELDS and f.default is not MISSING}
        return {name: value for name, value in asdict(self).items() if name not in late or value != late[name]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Info:
        """Rebuild from the values of `to_json`.

        Raises:
            UserError: If a file describes impossible data.
        """
        from pydantic import ValidationError

        if unknown := sorted(values.keys() - {field.name for field in fields(cls)}):
            raise UserError(f"the data have an unknown field {unknown[0]!r}")
        try:
            info = _info_schema().validate_python(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"the data's {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        info._check()
        return info

    def _check(self) -> None:
        """Reject inconsistent values."""
        numbers = {name: getattr(self, name) for name in ("mean", "std", "target_mean", "target_std", "crop_fraction")}
        flat = {name: value if isinstance(value, tuple) else (value,) for name, value in numbers.items()}
        positive = all(
            value is None or value > 0 for name in ("std", "target_std", "crop_fraction") for value in flat[name]
        )
        sound = {
            "classes": self.classes is None or self.classes > 0,
            "class_names": None in (self.class_names, self.classes) or len(self.class_names or ()) == self.classes,
            "input_shape": all(size > 0 for size in self.input_shape),
            "mean and std": len(flat["mean"]) == len(flat["std"]) and positive,
            "numbers": all(value is None or math.isfinite(value) for values in flat.values() for value in values),
            "interpolation": self.interpolation in INTERPOLATIONS,
            "features": self.features is None or self.input_shape == (len(self.features),),
        }
        if wrong := [name for name, right in sound.items() if not right]:
            raise UserError(f"the data's {wrong[0]} is not valid: {self}")


@cache
def _info_schema() -> TypeAdapter[Info]:
    """Return pydantic's schema of `Info`, built once, since building dominates the reading of a small file."""
    from pydantic import TypeAdapter

    return TypeAdapter(Info)


class Dataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]], ABC):
    """A map-style data set that fetches whole batches: `torch.utils.data.DataLoader(dataset, collate_fn=collate)`."""

    info: Info
    per_row: ClassVar[tuple[str, ...]]
    """The attributes, tensors or arrays, with one entry per row."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(getattr(self, self.per_row[0]))

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the rows `indices` as one batch `(x, y)`."""

    def take(self, indices: Tensor) -> Self:
        """Return the data set restricted to the rows `indices`, in that order."""
        part = copy.copy(self)
        for name in self.per_row:
            values = getattr(self, name)
            setattr(part, name, values[indices.numpy() if isinstance(values, np.ndarray) else indices])
        return part

    def __getitem__(self, index: int | slice) -> tuple[Tensor, Tensor]:
        """Return one row `(x, y)`, or the rows of a slice as one batch: `dataset[:]` is all of them."""
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index])
        x, y = self.__getitems__([index])
        return x[0], y[0]

    @property
    def target_mean(self) -> float | tuple[float, ...]:
        """The mean subtracted from the targets of a regression."""
        return self.info.target_mean

    @property
    def target_std(self) -> float | tuple[float, ...]:
        """The divisor of the targets of a regression."""
        return self.info.target_std


class Pictures(Dataset, ABC):
    """Images that are stored as bytes until they are fetched, so that they can be shown or corrupted."""

    normalise: Normalise

    @abstractmethod
    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the rows `indices` as bytes `(n, channels, height, width)`, and their labels."""

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of normalised float32 images, and their labels."""
        images, labels = self.pixels(indices)
        return self.normalise(images), labels


def collate(batch: Any) -> Any:
    """Return a batch that `__getitems__` has already collated; stack a list of rows as torch does."""
    return batch if isinstance(batch, tuple) else default_collate(batch)


def class_frequencies(dataset: Dataset) -> Tensor:
    """Return the fraction of labels or pixels of each class, (classes,), without the ignored label."""
    info = getattr(dataset, "info", None)
    if info is None:
        raise UserError(f"class frequencies need a data set of pb.data.load, not a {type(dataset).__name__}")
    if info.classes is None:
        raise UserError(f"data set {info.name!r} is a {info.task}: it has no classes to count")
    counts = torch.zeros(info.classes, dtype=torch.int64)
    for start in range(0, len(dataset), _AT_ONCE):
        labels = dataset.__getitems__(range(start, min(start + _AT_ONCE, len(dataset))))[1].flatten()
        counted = labels if info.ignore_index is None else labels[labels != info.ignore_index]
        counts += torch.bincount(counted, minlength=info.classes)
    return counts / counts.sum().clamp(min=1)


def class_weights(dataset: Dataset) -> Tensor:
    """Compute `w_c = 1 / ln(1.02 + p_c)`, p_c the frequency of class c (Paszke et al. 2016), at most 50."""
    return 1 / (1.02 + class_frequencies(dataset)).log()


class Images(Pictures):
    """Images `(n, channels, height, width)` kept as uint8, normalised (and augmented) when fetched."""

    per_row = ("labels", "images")

    def __init__(
        self, images: Tensor, labels: Tensor, info: Info, normalise: Normalise, augment: CropFlip | None
    ) -> None:
        self.images, self.labels, self.info = images, labels, info
        self.normalise, self.augment = normalise, augment

    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of images as bytes, augmented if requested, and their labels."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images[rows]
        if self.augment is not None:
            images = self.augment(images)
        return images, self.labels[rows]


class Arrays(Dataset):
    """Rows of two tensors; `x` may be several `Inputs`."""

    per_row = ("y", "x")

    def __init__(self, x: Any, y: Tensor, info: Info) -> None:
        self.x, self.y, self.info = x, y, info

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of rows."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.x[rows], self.y[rows]

    @property
    def scale(self) -> Scale:
        """Means and stds of features (None if unscaled) and of targets."""
        return self.info.mean, self.info.std, self.info.target_mean, self.info.target_std

    def scaled(
        self, mean: Numbers, std: Numbers, target_mean: float | Numbers = 0.0, target_std: float | Numbers = 1.0
    ) -> Arrays:
        """Return the rows with scaled features and targets, as recorded in `info`."""
        x, y = (self.x - torch.tensor(mean)) / torch.tensor(std), self.y
        if y.is_floating_point():
            y = (y - torch.tensor(target_mean)) / torch.tensor(target_std)
        info = replace(self.info, range=None, mean=mean, std=std, target_mean=target_mean, target_std=target_std)
        return Arrays(x, y, info)

    def unscaled(self) -> Arrays:
        """Return the rows in their original units."""
        mean, std, target_mean, target_std = self.scale
        x, y = self.x, self.y
        if mean is not None and std is not None:
            x = x * torch.tensor(std) + torch.tensor(mean)
        if y.is_floating_point():
            y = y * torch.tensor(target_std) + torch.tensor(target_mean)
        return Arrays(x, y, replace(self.info, mean=None, std=None, target_mean=0.0, target_std=1.0))

    def standardised(self, known: Tensor) -> Arrays:
        """Standardise features and regression targets by the mean and std of the rows `known`."""
        features = _moments(self.x[known])
        if not self.y.is_floating_point():
            return self.scaled(*features)
        mean, std = _moments(self.y[known])
        return self.scaled(*features, *((mean[0], std[0]) if len(mean) == 1 else (mean, std)))


def _moments(columns: Tensor) -> tuple[Numbers, Numbers]:
    """Return mean and std of each column; the std of a constant column counts as 1."""
    columns = columns.double()
    std = columns.std(dim=0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return tuple(columns.mean(dim=0).tolist()), tuple(std.tolist())
