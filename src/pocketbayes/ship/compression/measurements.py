"""Measurements on calibration data: second moments of each weight's inputs, and sensitivities of layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pocketbayes.base.errors import UserError
from pocketbayes.base.model_lock import MODEL_LOCK
from pocketbayes.data.batches import as_source, batch_size_for, batches, size_of
from pocketbayes.data.model_inputs import ModelInput, tensors_of
from pocketbayes.methods.curvature import diagonal_curvature
from pocketbayes.network import Network
from pocketbayes.plane.trellis import path_length
from pocketbayes.posteriors.layout import evaluating, weights_in_place
from pocketbayes.posteriors.model_call import call_model

INPUTS_PER_LAYER = 8192
"""Inputs per layer over which moments are averaged: a few times the columns of a usual layer."""
CALIBRATION_VALUES = 1 << 22
CALIBRATION_EXAMPLES = (128, 1024)
"""Input values for measuring moments and batch norm, and the smallest and largest number of examples."""
CALIBRATION_BATCH = 128
"""Largest number of examples per batch; large images are measured in smaller batches."""
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
SENSITIVITY_EXAMPLES = 64
"""Number of examples for the sensitivities: one number per layer needs few."""
MIN_SENSITIVITY = 1e-4
"""Smallest sensitivity relative to the largest, for layers that these examples do not reach."""


def input_moments(net: Network, stream: Iterable[Any], examples: int) -> list[Tensor | None]:
    """Average x x^T over the inputs x that multiply the rows of each weight.

    A weight is recognised by identity in calls of `linear` and `conv`, so any model that applies its weights in this
    way is covered, custom layers and self-attention included. Weights used otherwise (recurrent cells, transposed
    convolutions, weights that are transformed first) have no moments.

    Args:
        net: The network, which runs at its mean, in evaluation mode.
        stream: Batches.
        examples: The number of examples in the stream, over which the sampled inputs are spread.

    Returns:
        For every slot a float32 tensor (blocks, columns, columns), or None. Blocks are ordered by group, then by input
        channels, of the weight as a matrix (groups x rows, columns).
    """
    with torch.no_grad():
        weights = net.layout.views(net.posterior.moments()[0].detach())
    watch = _Watch(weights, examples)
    with (
        torch.no_grad(),
        MODEL_LOCK,
        evaluating(net.model),
        weights_in_place(net.model, net.layout.by_site(weights)),
        watch,
    ):
        for batch in stream:
            x = batch[0] if isinstance(batch, (tuple, list)) else batch
            call_model(net.model, net.place(x))
    return watch.moments()


class _Watch(TorchFunctionMode):
    """A mode that sums the moments of known weights' inputs while a model runs."""

    def __init__(self, weights: Sequence[Tensor], examples: int) -> None:
        super().__init__()
        self.slots = {id(weight): number for number, weight in enumerate(weights)}
        self.weights = weights
        self.examples = max(examples, 1)
        self.sums: dict[int, Tensor] = {}
        self.counts: dict[int, int] = {}
        self.generator = torch.Generator().manual_seed(0)

    def moments(self) -> list[Tensor | None]:
        return [
            self.sums[number] / self.counts[number] if number in self.sums else None
            for number in range(len(self.weights))
        ]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear or func in _CONVOLUTIONS:
            given = dict(zip(_ARGUMENTS, args)) | kwargs
            if (slot := self.slots.get(id(given["weight"]))) is not None:
                self.add(slot, given["input"], given["weight"], _CONVOLUTIONS.get(func), given)
        return func(*args, **kwargs)

    def add(self, slot: int, x: Tensor, weight: Tensor, dimensions: int | None, settings: dict[str, Any]) -> None:
        if dimensions is None:
            rows = x.reshape(1, -1, x.shape[-1])
            wanted = self.wanted(len(x))
            if rows.shape[1] > wanted:
                rows = rows[:, torch.randint(rows.shape[1], (wanted,), generator=self.generator).to(x.device)]
        else:
            x = x if x.ndim == dimensions + 2 else x[None]
            rows = _patches(x, weight.shape[2:], settings, self.wanted(len(x)), self.generator)
        blocks = _cut(rows).float()
        total = torch.bmm(blocks.transpose(1, 2), blocks)
        self.sums[slot] = self.sums[slot] + total if slot in self.sums else total
        self.counts[slot] = self.counts.get(slot, 0) + rows.shape[1]

    def wanted(self, batch: int) -> int:
        """Return the number of inputs to take from a batch of this size."""
        return max(1, math.ceil(INPUTS_PER_LAYER * batch / self.examples))


def _cut(rows: Tensor) -> Tensor:
    """Cut (groups, n, columns) into blocks of the columns of a path: (groups x blocks, n, path)."""
    groups, n, columns = rows.shape
    length = path_length(columns)
    return rows.view(groups, n, -1, length).transpose(1, 2).reshape(-1, n, length)


def _patches(
    x: Tensor, kernel: Sequence[int], settings: dict[str, Any], wanted: int, generator: torch.Generator
) -> Tensor:
    """Return the inputs of a convolution at random positions, (groups, n, columns)."""
    dimensions = len(kernel)
    stride, dilation = (_each(settings.get(name, 1), dimensions) for name in ("stride", "dilation"))
    padding, groups = settings.get("padding", 0), int(settings.get("groups", 1))
    reach = [d * (k - 1) for k, d in zip(kernel, dilation)]
    if padding == "same":
        sides = [(total // 2, total - total // 2) for total in reach]
    else:
        sides = [(p, p) for p in _each(0 if padding == "valid" else padding, dimensions)]
    x = F.pad(x, [side for pair in reversed(sides) for side in pair])
    for axis in range(dimensions):
        x = x.unfold(2 + axis, reach[axis] + 1, stride[axis])
    window: tuple[Any, ...] = (slice(None),) * (2 + dimensions) + tuple(slice(None, None, d) for d in dilation)
    x = x[window]  # (batch, channels, places ..., kernel ...)
    places = x.shape[2 : 2 + dimensions]
    number = min(math.prod(places), max(1, -(-wanted // len(x))))
    flat = torch.randperm(math.prod(places), generator=generator)[:number]
    chosen = tuple(index.to(x.device) for index in torch.unravel_index(flat, tuple(places)))
    taken = x.permute(*range(2, 2 + dimensions), 0, 1, *range(2 + dimensions, x.ndim))[chosen].flatten(3)
    taken = taken.permute(1, 2, 0, 3)  # (batch, channels, number, taps)
    batch, channels, number, taps = taken.shape
    taken = taken.view(batch, groups, channels // groups, number, taps).permute(1, 0, 3, 2, 4)
    return taken.reshape(groups, batch * number, -1)


def _each(value: Any, dimensions: int) -> list[int]:
    return [int(v) for v in value] if isinstance(value, (tuple, list)) else [int(value)] * dimensions


def calibration_batches(train: Any, seed: int) -> list[ModelInput]:
    """Return batches of a few hundred inputs."""
    source = as_source(train)
    least, most = CALIBRATION_EXAMPLES
    first = next(iter(batches(source, 1, shuffle_seed=seed)))[0]
    values = sum(tensor[0].numel() for tensor in tensors_of(first))
    wanted = min(max(CALIBRATION_VALUES // max(values, 1), least), most, size_of(source))
    at_once = min(batch_size_for((values,), CALIBRATION_BATCH), wanted)
    stream = (batch[0] for batch in batches(source, at_once, shuffle_seed=seed))
    return list(itertools.islice(stream, -(-wanted // at_once)))


def layer_sensitivity(network: Network, inputs: Sequence[ModelInput]) -> Tensor | None:
    """Return the change of the outputs if all weights of a layer change by their own size, one value per slot.

    This is the root mean square of the layer's weights times that of the curvature's square root, for any network that
    can be differentiated. Bits are distributed by it: first, last and depthwise layers have few weights, on which many
    outputs depend, so bits are cheap there.

    Args:
        network: The network.
        inputs: Batches, of which the first few examples are used.

    Returns:
        Sensitivities (slots,); None for networks that cannot be differentiated, and for likelihoods other than classes
        and Gaussian noise.
    """
    first, wanted = [], SENSITIVITY_EXAMPLES
    for batch in inputs:
        if wanted > 0:
            first.append((network.place(batch[:wanted]), torch.empty(0)))
            wanted -= len(batch)
    try:
        curvature = diagonal_curvature(network, first)[0]
    except (UserError, RuntimeError):  # such as recurrent layers on a GPU, which only differentiate while training
        return None
    with torch.no_grad():
        views = zip(network.layout.views(network.posterior.moments()[0]), network.layout.views(curvature))
        sizes = [weight.square().mean() * own.mean() if own.numel() else own.sum() for weight, own in views]
    if not sizes:
        return None
    found = torch.stack(sizes).sqrt()
    return found.clamp(min=MIN_SENSITIVITY * float(found.max())) if bool(found.max() > 0) else None
