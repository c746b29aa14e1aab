"""Convert user data to batches in a seeded order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pocketbayes.base.errors import UserError, warn
from pocketbayes.base.seeds import derive_seed, seed_generators
from pocketbayes.data.dataset import Arrays, Info, Task, collate
from pocketbayes.data.description import describe_source
from pocketbayes.data.model_inputs import Inputs, ModelInput, as_input, as_tensor, describe_inputs, split_batch
from pocketbayes.data.validate import feature_range, validate_batch

Source = TorchDataset | DataLoader


class Rows(Protocol):
    """Rows (x, y) by number, such as a list, or a data set of another library."""

    def __getitem__(self, row: int, /) -> Any: ...

    def __len__(self) -> int: ...


Data: TypeAlias = TorchDataset | DataLoader | tuple[Any, Any] | Rows
"""Data as users have them: a data set, a loader, or a pair (x, y) of arrays; x may be several inputs by name."""
VALUES_IN_FLIGHT = 32 * 3 * 224 * 224
"""Input values per batch of a prediction, for which a ResNet-50 takes about 0.5 GB."""


def as_source(value: Any) -> Source:
    """Convert a data set, a loader or a pair (x, y) of arrays to a source for `batches`."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        x, y = as_input(value[0]), as_tensor(value[1], "the targets")
        if len(x) != len(y):
            raise UserError(f"{len(x)} inputs but {len(y)} targets: give as many of each")
        if y.is_floating_point():
            y = _as_float(y).reshape(len(y), -1)
            if y.shape[1] > 2 and bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all()):
                warn("one-hot targets are treated as a regression: for classes give y.argmax(1)")
        value = Arrays(_as_float(x), y, _info_of(x, y))
    elif isinstance(value, (tuple, list)) and any(isinstance(part, Tensor | np.ndarray) for part in value):
        raise UserError(
            f"data of {len(value)} arrays: give a pair (x, y); for several inputs x is a mapping of names to arrays"
        )
    if isinstance(value, Tensor | np.ndarray):
        raise UserError("the data are one array without targets: give a pair (x, y)")
    if isinstance(value, str):
        raise UserError(f"expected data, not the name {value!r}: load them with pb.data.load({value!r}, 'train')")
    readable = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, Mapping)
    if not isinstance(value, DataLoader) and not readable:
        raise UserError(
            f"cannot read data from a {type(value).__name__}: give a Dataset, a DataLoader or a pair (x, y)"
        )
    if size_of(value) == 0:
        raise UserError("the data are empty")
    source: Source = value
    return source


def size_of(source: TorchDataset | DataLoader) -> int:
    """Return N, the number of examples."""
    data = source.dataset if isinstance(source, DataLoader) else source
    try:
        return len(data)  # type: ignore[arg-type]
    except TypeError:
        raise UserError(f"a {type(data).__name__} has no length, which KL / N needs: give it a __len__") from None


def info_of(source: TorchDataset | DataLoader) -> Info | None:
    """Return the data set's `Info`, if it has one."""
    data = source.dataset if isinstance(source, DataLoader) else source
    info = getattr(data, "info", None)
    return info if isinstance(info, Info) else None


def describe_training(train: Source, val: Source | None, given: Info | None = None) -> Info | None:
    """Return the description of the data, the given one, or one inferred from the data.

    Images are described by the preprocessing of the validation data, since training may crop at random.
    """
    return info_of(train) or given or (None if val is None else describe_source(val)) or describe_source(train)


def batches(
    source: TorchDataset | DataLoader,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    start: int = 0,
    stride: int = 1,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
) -> Iterator[tuple[Any, Tensor]]:
    """Yield batches (x, y), checked against the data set's description; x is a tensor or several `Inputs`.

    Args:
        source: The result of `as_source`; a DataLoader keeps its own order and batch size.
        batch_size: Examples per batch over all ranks.
        shuffle_seed: Seed of the order; None keeps the data's order.
        start: Batches to skip when an epoch is resumed.
        stride: Yield only every `stride`-th batch, for processes that divide whole batches.
        rank: This process, which reads every world-th example of each batch, or the first one if there is none for it,
            so that all processes take the same number of steps (see `share`).
        world: The number of processes.
        workers: Processes that load data.
    """
    info = info_of(source)
    if isinstance(source, DataLoader):
        for index, batch in enumerate(source):
            if index >= start and (index - start) % stride == 0:
                x, y = split_batch(batch)
                if info is not None:
                    validate_batch(x, y, info)
                yield x, y
        return
    order = epoch_order(size_of(source), shuffle_seed)
    chunks = [chunk[rank::world].tolist() or chunk[:1].tolist() for chunk in order.split(batch_size)[start::stride]]
    generator = torch.Generator().manual_seed(shuffle_seed or 0)  # otherwise the loader draws from the global generator
    if workers:
        seeds = [derive_seed(shuffle_seed or 0, start + number * stride, rank) for number in range(len(chunks))]
        chunks = [_Chunk(chunk, seed) for chunk, seed in zip(chunks, seeds)]
    loader = DataLoader(
        _Seeded(source) if workers else source,
        batch_sampler=chunks,
        collate_fn=collate,
        generator=generator,
        num_workers=workers,
    )
    try:
        for chunk, batch in zip(chunks, loader):
            x, y = split_batch(batch)
            if info is not None:
                validate_batch(x, y, info, chunk)
            yield x, y
    except UserError as error:  # from a worker it contains a traceback, with the message in the last line
        text = str(error).strip()
        if not text.startswith("Caught "):
            raise
        raise UserError(text.splitlines()[-1].partition("Error: ")[2]) from None


def share(source: TorchDataset | DataLoader, batch_size: int, step: int, rank: int, world: int) -> float:
    """Return the weight of this rank's batch mean, so that the mean over ranks is the batch's mean.

    It is 1 if all parts have the same size and 0 if no example was left for this process. A user's DataLoader is
    assumed to give every process the same number.
    """
    if isinstance(source, DataLoader):
        return 1.0
    together = min(batch_size, size_of(source) - step * batch_size)
    return len(range(rank, together, world)) * world / together


class _Chunk(list[int]):
    """The rows of a batch with its seed."""

    def __init__(self, rows: Sequence[int] = (), seed: int = 0) -> None:
        super().__init__(rows)
        self.seed = seed


class _Seeded(TorchDataset):
    """Data fetched by workers, seeded per batch, so that random augmentation is independent of the worker.

    Workers' generators cannot be saved, since workers are ahead of the step at which a run is interrupted.
    """

    def __init__(self, data: TorchDataset) -> None:
        self.data = data

    def __getitems__(self, chunk: _Chunk) -> Any:
        seed_generators(chunk.seed)
        if hasattr(self.data, "__getitems__"):
            return self.data.__getitems__(chunk)
        return [self.data[row] for row in chunk]


def batch_size_for(shape: Sequence[int], most: int) -> int:
    """Return a batch size that fits memory: 32 for 3 x 224 x 224, the given maximum for 3 x 64 x 64 or less."""
    return max(1, min(most, VALUES_IN_FLIGHT // max(math.prod(shape), 1)))


def steps_per_epoch(source: TorchDataset | DataLoader, batch_size: int) -> int:
    """Return the number of batches in an epoch."""
    return len(source) if isinstance(source, DataLoader) else -(-size_of(source) // batch_size)


def epoch_order(size: int, seed: int | None) -> Tensor:
    """Return the order in which an epoch visits the examples."""
    if seed is None:
        return torch.arange(size)
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def _as_float(x: Any) -> Any:
    """Convert float64 arrays to float32; integers may be tokens and are kept."""
    if isinstance(x, Inputs):
        return x.map(_as_float)
    return x.to(torch.get_default_dtype()) if x.dtype == torch.float64 else x


def _info_of(x: ModelInput, y: Tensor) -> Info:
    shape, several = tuple(x.shape[1:]), describe_inputs(x)
    reach = feature_range(x) if isinstance(x, Tensor) else None
    if y.is_floating_point():
        return Info("arrays", "regression", None, None, shape, inputs=several, range=reach)
    classes = int(y.max()) + 1 if len(y) else 0
    task: Task = "segmentation" if y.ndim == 3 else "classification"
    return Info("arrays", task, classes, None, shape, inputs=several, range=reach)
