"""Model inputs: one tensor, or several, positional or named, that are split and moved like a single tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pocketbayes.base.errors import UserError

TARGETS = ("labels", "label", "targets", "target", "y")
"""Names of a batch's targets, in order of preference."""


def as_tensor(value: Any, what: str) -> Tensor:
    """Convert an array or nested lists of numbers to a tensor of at least one dimension."""
    if isinstance(value, np.ndarray) and any(stride < 0 for stride in value.strides):
        value = value.copy()  # torch has no negative strides
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).partition(". ")[0]
        raise UserError(f"{what} cannot be read as numbers ({reason}): give a tensor, or an array of numbers") from None
    if tensor.is_nested:
        raise UserError(f"{what} are a nested tensor: give one shape, such as x.to_padded_tensor(0)")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UserError(f"{what} are a tensor of layout {tensor.layout} and type {tensor.dtype}: give a dense one")
    if tensor.is_meta:
        raise UserError(f"{what} lie on the meta device, where tensors have no values")
    if tensor.is_complex():
        raise UserError(f"{what} are complex numbers: give real ones")
    if tensor.is_floating_point() and tensor.element_size() < 2:  # torch only stores these, and computes nothing
        raise UserError(f"{what} are of type {tensor.dtype}, which cannot be computed with: give x.float()")
    if tensor.ndim == 0:
        raise UserError(f"{what} are a single number: give an array whose first dimension counts the examples")
    return tensor


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model for one batch: tensors whose first axis is the batch.

    It supports the tensor operations that batches need: length, rows, splitting, device.
    """

    args: tuple[Tensor, ...] = ()
    kwargs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in order."""
        return (*self.args, *self.kwargs.values())

    @property
    def shape(self) -> torch.Size:
        """The shape of the first tensor."""
        return self.tensors[0].shape

    @property
    def ndim(self) -> int:
        """The number of axes of the first tensor."""
        return self.tensors[0].ndim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor."""
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        """The device of the first tensor."""
        return self.tensors[0].device

    def map(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        """Apply a function to each tensor."""
        return Inputs(tuple(map(function, self.args)), {name: function(value) for name, value in self.kwargs.items()})

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, rows: Any) -> Inputs:
        return self.map(lambda tensor: tensor[rows])

    def to(self, *args: Any, **kwargs: Any) -> Inputs:
        """Move all tensors; a dtype applies to floating-point tensors only, so that tokens keep theirs."""
        where = [arg for arg in args if not isinstance(arg, torch.dtype)]
        last = {"memory_format": kwargs.pop("memory_format")} if "memory_format" in kwargs else {}

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(*(args if tensor.is_floating_point() else where), **kwargs) if args or kwargs else tensor
            return moved.to(**last) if last and tensor.ndim == 4 else moved

        return self.map(move)

    def split(self, size: int) -> list[Inputs]:
        """Split into parts of `size` rows."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def chunk(self, parts: int) -> list[Inputs]:
        """Split into the given number of parts, like `Tensor.chunk`."""
        return self.split(-(-len(self) // parts))

    def is_floating_point(self) -> bool:
        """Return whether any tensor is floating-point."""
        return any(tensor.is_floating_point() for tensor in self.tensors)


ModelInput: TypeAlias = Tensor | Inputs

pytree.register_pytree_node(
    Inputs,
    lambda inputs: (list(inputs.tensors), (len(inputs.args), tuple(inputs.kwargs))),
    lambda tensors, names: Inputs(tuple(tuple(tensors)[: names[0]]), dict(zip(names[1], tuple(tensors)[names[0] :]))),
    serialized_type_name="pocketbayes.Inputs",
)


def tensors_of(x: ModelInput) -> tuple[Tensor, ...]:
    """Return the tensors of an input, one or several."""
    return x.tensors if isinstance(x, Inputs) else (x,)


def describe_inputs(x: ModelInput) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return the name, type and shape per example of several inputs; empty for a single tensor."""
    if not isinstance(x, Inputs):
        return ()
    named = [*((str(number), value) for number, value in enumerate(x.args)), *x.kwargs.items()]
    return tuple((name, str(value.dtype).removeprefix("torch."), tuple(value.shape[1:])) for name, value in named)


def made_up(described: Sequence[tuple[str, str, tuple[int, ...]]]) -> Inputs:
    """Make two examples of ones that match `describe_inputs`, for tracing a model."""
    values = {name: torch.ones(2, *shape, dtype=getattr(torch, kind)) for name, kind, shape in described}
    unnamed = tuple(value for name, value in values.items() if name.isdecimal())
    return Inputs(unnamed, {name: value for name, value in values.items() if not name.isdecimal()})


def as_input(value: Any) -> ModelInput:
    """Convert an array, a mapping of names to arrays, or a tuple of tensors to a model's input.

    Targets among named inputs are dropped.
    """
    if isinstance(value, Inputs):
        return value
    if isinstance(value, Mapping):
        named = {
            str(k): as_tensor(v, f"the inputs {k!r}") for k, v in value.items() if k not in TARGETS and _is_array(v)
        }
        return _same_length(Inputs(kwargs=named))
    if isinstance(value, (tuple, list)) and len(value) > 1 and all(isinstance(v, Tensor) and v.ndim for v in value):
        return _same_length(Inputs(tuple(as_tensor(v, "the inputs") for v in value)))
    return as_tensor(value, "the inputs")


def split_batch(batch: Any) -> tuple[ModelInput, Tensor]:
    """Split a batch of a DataLoader into inputs and targets.

    A batch is a pair (x, y), where x may be a mapping or a tuple of tensors; a longer tuple of tensors, the last of
    which is the target; or a mapping with the target under one of the names in `TARGETS`. Labels of any integer type
    become int64.
    """
    if isinstance(batch, Mapping):
        name = next((name for name in TARGETS if isinstance(batch.get(name), Tensor)), None)
        if name is None:
            raise UserError(f"a batch has no targets: name them 'labels'; it has {', '.join(map(str, batch))}")
        return as_input(batch), _as_labels(batch[name])
    if isinstance(batch, (tuple, list)) and len(batch) >= 2 and isinstance(batch[-1], Tensor):
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        if isinstance(inputs, (Tensor, Inputs)):
            return inputs, _as_labels(batch[-1])
        if isinstance(inputs, Mapping) or (
            isinstance(inputs, (tuple, list)) and all(isinstance(part, Tensor) for part in inputs)
        ):
            return as_input(inputs), _as_labels(batch[-1])
    parts = ", ".join(type(part).__name__ for part in batch) if isinstance(batch, (tuple, list)) else ""
    found = f"({parts})" if parts else f"a {type(batch).__name__}"
    raise UserError(
        f"a batch must be a pair (inputs, targets) of tensors, or named tensors with 'labels', not {found}: change "
        "the data set"
    )


def _as_labels(target: Tensor) -> Tensor:
    return target if target.is_floating_point() or target.is_complex() else target.long()


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or (hasattr(value, "dtype") and hasattr(value, "shape"))


def _same_length(inputs: Inputs) -> Inputs:
    lengths: Sequence[int] = [len(tensor) for tensor in inputs.tensors]
    if not lengths:
        raise UserError("there are no inputs: name them like the arguments of the model's forward")
    if len(set(lengths)) > 1:
        raise UserError(f"inputs must have the same length, not {lengths}")
    return inputs
