"""What every data set is: rows of `(x, y)`, fetched a batch at a time, and an `Info` that describes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import default_collate

from pocketbayes.data.normalise import Normalise

Task = Literal["classification", "regression", "segmentation"]
LATE_FIELDS = frozenset({"interpolation", "inputs"})
"""Fields of `Info` that files of older versions do not have."""


@dataclass(frozen=True)
class Info:
    """What a data set holds.

    Attributes:
        name: The name it was loaded by.
        task: What is predicted; it decides the shape of `y`: `(n,)`, `(n, targets)` or `(n, height, width)`.
        classes: How many classes, `None` for regression.
        class_names: One name a class, where they are known.
        input_shape: The shape of one `x`, without the batch.
        mean: What was subtracted from each channel (of values in 0..1) or feature.
        std: What each channel or feature was divided by.
        ignore_index: The label that counts as "no answer" and must not enter a loss or a score.
        target_mean: Regression: what was subtracted from `y`, one number or one a target.
        target_std: Regression: what `y` was divided by; `y * target_std + target_mean` is in the original unit.
        crop_fraction: Pictures from files: the shorter side becomes the input's size over this, then the centre is cut
            out; `None` where the whole picture is scaled, whatever its shape.
        interpolation: Pictures from files: how they are scaled, by Pillow's name.
        inputs: Models of several inputs: the name, type and shape of each; `input_shape` is the first's.
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

    def to_json(self) -> dict[str, Any]:
        """Return plain values for files; a field that came later stands in them only where it differs from usual."""
        late = {f.name: f.default for f in fields(self) if f.name in LATE_FIELDS and f.default is not MISSING}
        return {name: value for name, value in asdict(self).items() if name not in late or value != late[name]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Info:
        """Rebuild what `to_json` returned, whose lists are tuples."""
        return cls(**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class Dataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]], ABC):
    """A map-style data set that fetches whole batches: `torch.utils.data.DataLoader(dataset, collate_fn=collate)`."""

    info: Info

    @abstractmethod
    def __len__(self) -> int:
        """How many rows."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The rows `indices` as one batch `(x, y)`."""

    @abstractmethod
    def take(self, indices: Tensor) -> Dataset:
        """The same data set, of the rows `indices` only, in that order."""

    def __getitem__(self, index: int | slice) -> tuple[Tensor, Tensor]:
        """One row `(x, y)`, or the rows of a slice as one batch: `dataset[:]` is all of them."""
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index])
        x, y = self.__getitems__([index])
        return x[0], y[0]

    @property
    def target_mean(self) -> float | tuple[float, ...]:
        """What was subtracted from the targets of a regression."""
        return self.info.target_mean

    @property
    def target_std(self) -> float | tuple[float, ...]:
        """What the targets of a regression were divided by."""
        return self.info.target_std


class Pictures(Dataset, ABC):
    """Images that stay bytes until they are asked for, so that they can be shown, or changed as a camera would."""

    normalise: Normalise

    @abstractmethod
    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The rows `indices` as bytes `(n, channels, height, width)`, and their labels."""

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch of normalised float32 images, and their labels."""
        images, labels = self.pixels(indices)
        return self.normalise(images), labels


def collate(batch: Any) -> Any:
    """Pass a batch that `__getitems__` has already put together through; stack a list of rows as torch does."""
    return batch if isinstance(batch, tuple) else default_collate(batch)
