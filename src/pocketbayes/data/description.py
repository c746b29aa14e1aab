"""Descriptions of data: shape, normalisation and class names, read from transforms and matched by other data."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, default_collate

from pocketbayes.base.errors import UserError
from pocketbayes.data.arrays import find_columns
from pocketbayes.data.dataset import Arrays, Dataset, Info, Pictures, Task
from pocketbayes.data.folders import ImageFiles
from pocketbayes.data.model_inputs import describe_inputs, split_batch
from pocketbayes.data.pixels import Normalise

USUAL_CROP = 0.875
"""Evaluation's crop fraction where training crops at random: 224 of 256 pixels."""
MAX_INPUT_VALUES = 2**28
"""A gigabyte per input, far above any image; larger shapes are mistakes."""
CHANGING_VALUES = frozenset({"Lambda", "LinearTransformation", "FiveCrop", "TenCrop", "PILToTensor", "ToNumpy"})
"""Steps of torchvision and timm after which pixels are no longer known to lie between 0 and 1."""


class UnreadableTransformError(UserError):
    """A transform with a step whose effect on pixels is unknown."""


@dataclass(frozen=True)
class Preprocessing:
    """Scaling, cropping and normalisation of images.

    Attributes:
        size: Height and width after cropping; None if the transform keeps the image size.
        crop_fraction: As in `Info`.
        mean: The mean of each channel, for pixels from 0 to 1.
        std: The divisor of each channel.
        interpolation: The interpolation of scaling.
        channels: 1 after conversion to grey.
    """

    size: tuple[int, int] | None = None
    crop_fraction: float | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    interpolation: str = "bilinear"
    channels: int | None = None


def read_transform(transform: Any) -> Preprocessing:
    """Read the preprocessing from a transform.

    Args:
        transform: A transform of torchvision (including those of its weights) or timm, timm's data configuration, or an
            image processor of transformers.

    Raises:
        UnreadableTransformError: If a step is a user's own function.
    """
    if isinstance(transform, Mapping):
        return _from_config(transform)
    if hasattr(transform, "image_mean"):
        return _from_processor(transform)
    if hasattr(transform, "crop_size") and hasattr(transform, "resize_size"):
        (side,), (resized,) = transform.crop_size, transform.resize_size
        return Preprocessing(
            (side, side), side / resized, _numbers(transform.mean), _numbers(transform.std), _mode(transform)
        )
    return _from_steps(_steps(transform))


def describe_source(source: Any) -> Info | None:
    """Describe a data set of another library by its transform and one example.

    It covers data sets of torchvision and timm, and others with a `transform` and possibly `classes` (names), also
    inside a `Subset`. For other data only the shape of one example is known.
    """
    data = getattr(source, "dataset", source)
    while hasattr(data, "dataset"):
        data = data.dataset
    transform = getattr(data, "transform", None)
    if transform is None:
        return _from_example(source)
    try:
        prepared = read_transform(transform)
        with torch.random.fork_rng(devices=[]):
            x, y = data[0]
    except (UnreadableTransformError, TypeError, ValueError, LookupError):
        return _from_example(source)
    if not isinstance(x, Tensor) or x.ndim != 3 or (isinstance(y, Tensor) and y.ndim):
        return _from_example(source)
    names = getattr(data, "classes", None)
    if names is None and (reader := getattr(data, "reader", None)) is not None:  # timm's
        names = getattr(reader, "class_to_idx", None)
    if isinstance(y, float) or (isinstance(y, Tensor) and y.is_floating_point()):
        task, names = "regression", None
    else:
        task = "classification"
    return make_info(type(data).__name__, task, prepared, tuple(x.shape), names)  # type: ignore[arg-type]


def _from_example(source: Any) -> Info | None:
    """Describe data by the names, types and shapes of one example, collated as by their loader."""
    loaded = isinstance(source, DataLoader)
    put_together = source.collate_fn if loaded and source.collate_fn is not None else default_collate
    try:
        with torch.random.fork_rng(devices=[]):
            x, y = split_batch(put_together([(source.dataset if loaded else source)[0]]))
    except Exception:  # a user's code may raise anything; training runs it again and reports the error
        return None
    task: Task = "regression" if y.is_floating_point() else "segmentation" if y.ndim == 3 else "classification"
    name, shape = type(getattr(source, "dataset", source)).__name__, tuple(x.shape[1:])
    return Info(name, task, None, None, shape, inputs=describe_inputs(x))


def make_info(
    name: str,
    task: Task,
    prepared: Preprocessing | None,
    input_shape: Sequence[int] | None,
    classes: Iterable[str] | int | None,
    known: Info | None = None,
) -> Info:
    """Build an `Info` from parts; missing ones are taken from `known`."""
    if input_shape is None and prepared is not None and prepared.size is not None:
        input_shape = (
            prepared.channels or max(3 if len(prepared.mean) == 1 else 0, len(prepared.mean)),
            *prepared.size,
        )
    if input_shape is None:
        if known is None:
            raise UserError("the shape of an input is unknown: give input_shape=, such as (3, 224, 224)")
        input_shape = known.input_shape
    try:
        shape = tuple(index(size) for size in input_shape)
    except TypeError:
        raise UserError(f"input_shape={input_shape!r}: give whole numbers, such as (3, 224, 224)") from None
    if min(shape, default=1) < 1 or math.prod(shape) > MAX_INPUT_VALUES:
        raise UserError(
            f"input_shape={shape}: sizes must be at least 1, and an input has at most {MAX_INPUT_VALUES} numbers"
        )
    info = replace(known, input_shape=shape) if known else Info(name, task, None, None, shape)
    if classes is not None:
        names = None if isinstance(classes, int) else tuple(str(name) for name in classes)
        info = replace(info, classes=classes if isinstance(classes, int) else len(names or ()), class_names=names)
    if prepared is None:
        return info
    if len(shape) != 3:
        raise UserError(f"the transform makes images, but inputs have the shape {shape}: give (channels, h, w)")
    if prepared.size not in (None, shape[1:]):
        raise UserError(f"the transform makes images of {prepared.size} pixels, but input_shape= says {shape[1:]}")
    mean, std = (values * shape[0] if len(values) == 1 else values for values in (prepared.mean, prepared.std))
    if len(mean) != shape[0]:
        raise UserError(f"the transform normalises {len(mean)} channels, but inputs have {shape[0]}")
    return replace(info, mean=mean, std=std, crop_fraction=prepared.crop_fraction, interpolation=prepared.interpolation)


def _from_steps(steps: Sequence[Any]) -> Preprocessing:
    found = Preprocessing()
    resized: int | None = None
    for step in steps:
        kind = type(step).__name__
        if kind in CHANGING_VALUES or not type(step).__module__.startswith(("torchvision.", "timm.")):
            raise UnreadableTransformError(
                f"the transform's step {kind} is not one of torchvision's or timm's known steps: give a transform of "
                "Resize, CenterCrop, ToTensor and Normalize"
            )
        if kind in ("Resize", "ResizeKeepRatio"):
            size = _sizes(step.size)
            found = replace(found, size=None if len(size) == 1 else _pair(size), interpolation=_mode(step))
            resized = size[0] if len(size) == 1 or kind == "ResizeKeepRatio" else None
            if len(size) == 1:
                found = replace(found, size=(size[0], size[0]), crop_fraction=1.0)
        elif kind in ("CenterCrop", "CenterCropOrPad"):
            size = _pair(_sizes(step.size))
            found = replace(found, size=size, crop_fraction=min(size) / resized if resized else found.crop_fraction)
        elif kind.startswith("RandomResizedCrop"):
            found = replace(found, size=_pair(_sizes(step.size)), crop_fraction=USUAL_CROP, interpolation=_mode(step))
        elif kind.startswith("RandomCrop"):
            found = replace(found, size=_pair(_sizes(step.size)))
        elif kind == "Grayscale":
            found = replace(found, channels=int(step.num_output_channels))
        elif kind == "Normalize":
            found = replace(found, mean=_numbers(step.mean), std=_numbers(step.std))
    return found


def _steps(transform: Any) -> list[Any]:
    """Return the steps of a composed transform, with nested ones flattened."""
    inner = getattr(transform, "transforms", None)
    if type(transform).__name__ in ("Compose", "Sequential") and inner is None:
        inner = list(transform)
    if inner is None or type(transform).__name__.startswith("Random"):
        return [transform]
    return [step for part in inner for step in _steps(part)]


def _from_config(config: Mapping[str, Any]) -> Preprocessing:
    """Read timm's data configuration, such as `timm.data.resolve_model_data_config(model)`."""
    if "input_size" not in config:
        raise UnreadableTransformError(f"a data configuration needs input_size, this one has {', '.join(config)}")
    try:
        channels, height, width = map(int, config["input_size"])
        mean, std = (_numbers(config.get(name, usual)) for name, usual in (("mean", (0.0,)), ("std", (1.0,))))
        crop = float(config.get("crop_pct") or USUAL_CROP)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnreadableTransformError(f"the data configuration {dict(config)} cannot be read: {error}") from error
    return Preprocessing((height, width), crop, mean, std, str(config.get("interpolation") or "bicubic"), channels)


def _from_processor(processor: Any) -> Preprocessing:
    """Read an image processor of transformers."""
    size = dict(processor.size)
    crop = dict(getattr(processor, "crop_size", None) or {}) if getattr(processor, "do_center_crop", False) else {}
    shorter = size.get("shortest_edge")
    height, width = (int((crop or size).get(side) or shorter or 0) for side in ("height", "width"))
    normalises = getattr(processor, "do_normalize", True)
    mean, std = (processor.image_mean, processor.image_std) if normalises else ((0.0,), (1.0,))
    how = "bicubic" if getattr(processor, "resample", None) == 3 else "bilinear"  # Pillow's number
    fraction = min(height, width) / shorter if shorter else None
    return Preprocessing((height, width), fraction, _numbers(mean), _numbers(std), how)


def _mode(step: Any) -> str:
    """Return the interpolation of a step, the first one if timm's random steps list several."""
    mode = getattr(step, "interpolation", "bilinear")
    mode = mode[0] if isinstance(mode, (tuple, list)) else mode
    name = str(getattr(mode, "value", mode)).lower()
    return name if name in ("bilinear", "bicubic", "nearest", "lanczos") else "bilinear"


def _sizes(size: Any) -> tuple[int, ...]:
    return (int(size),) if isinstance(size, int) else tuple(int(side) for side in size)


def _pair(size: Sequence[int]) -> tuple[int, int]:
    return (size[0], size[-1])


def _numbers(values: Any) -> tuple[float, ...]:
    # Single-precision tensors give 0.48500001 for 0.485.
    return tuple(float(f"{value:.7g}") for value in torch.as_tensor(values, dtype=torch.float64).flatten().tolist())


def match_preprocessing(other: Dataset, own: Info) -> Dataset:
    """Prepare data like those described by `own`.

    Images get the size and normalisation, tables the scale of features and targets. Settings that already match, or
    that `own` does not specify, are unchanged.
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
    """Relabel image files in the order of the network's class names, of which some may be missing."""
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


def match_features(other: Dataset, own: Info) -> Dataset:
    """Put the columns of a table in the order of the network's features, if both have names."""
    names = other.info.features
    if not isinstance(other, Arrays) or None in (names, own.features) or names == own.features:
        return other
    assert names is not None
    assert own.features is not None
    columns = find_columns(names, own.features, f"data set {other.info.name!r}")
    mean, std = (values and tuple(values[i] for i in columns) for values in (other.info.mean, other.info.std))
    info = replace(other.info, input_shape=(len(columns),), features=own.features, mean=mean, std=std)
    return Arrays(other.x[:, columns], other.y, info)


def _shortened(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class Resized(Pictures):
    """The images of a data set, scaled to `height` x `width` when fetched."""

    per_row = ("places",)

    def __init__(self, pictures: Pictures, height: int, width: int) -> None:
        self.pictures, self.normalise = pictures, pictures.normalise
        self.places = torch.arange(len(pictures))
        self.info = replace(pictures.info, input_shape=(pictures.info.input_shape[0], height, width))

    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the pictures `indices` as bytes, and their labels."""
        images, labels = self.pictures.pixels(self.places[torch.as_tensor(indices, dtype=torch.int64)].tolist())
        scaled = interpolate(images.float(), self.info.input_shape[1:], mode="bilinear", antialias=True)
        return scaled.round().clamp(0, 255).to(torch.uint8), labels
