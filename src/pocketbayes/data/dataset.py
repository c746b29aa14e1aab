"""The interface of data sets: rows `(x, y)` fetched in batches, and an `Info` that describes them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import default_collate

from pocketbayes.base.errors import UserError
from pocketbayes.data.normalise import Normalise

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Task = Literal["classification", "regression", "segmentation"]
LATE_FIELDS = frozenset({"interpolation", "inputs", "range"})
"""Fields of `Info` that files of older versions lack."""
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
"""Pillow's interpolation modes."""


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
        }
        if wrong := [name for name, right in sound.items() if not right]:
            raise UserError(f"the data's {wrong[0]} cannot be: {self}")


@cache
def _info_schema() -> TypeAdapter[Info]:
    """Return pydantic's schema of `Info`, built once, since building dominates the reading of a small file."""
    from pydantic import TypeAdapter

    return TypeAdapter(Info)


class Dataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]], ABC):
    """A map-style data set that fetches whole batches: `torch.utils.data.DataLoader(dataset, collate_fn=collate)`."""

    info: Info

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the rows `indices` as one batch `(x, y)`."""

    @abstractmethod
    def take(self, indices: Tensor) -> Dataset:
        """Return the data set restricted to the rows `indices`, in that order."""

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
