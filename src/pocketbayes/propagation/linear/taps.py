"""Recording of the linear operations on selected weights during a pass of an unmodified model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pocketbayes.data.model_inputs import Inputs, ModelInput
from pocketbayes.posteriors.gaussian import METADATA, Op, tensors_in
from pocketbayes.posteriors.layout import Layout
from pocketbayes.propagation.linear_ops import LINEAR_OPS, LinearCall
from pocketbayes.propagation.moments.attention import COMPOSED


class NotTappedError(Exception):
    """The model uses its weights in ways that per-layer formulas do not cover."""


@dataclass(frozen=True)
class Use:
    """One linear operation on selected weights within a pass.

    Attributes:
        op: The operation.
        call: Its arguments.
        settings: Its arguments other than input, weight and bias.
        weight: The slot of its weight, if selected.
        bias: The slot of its bias, if selected.
        version: The version counter of its input.
        edge: The graph edge of its output's gradient; None without gradients.
        output: Its output; None with gradients, since the graph keeps what it needs.
    """

    op: Op
    call: LinearCall
    settings: Mapping[str, Any]
    weight: int | None
    bias: int | None
    version: int
    edge: GradientEdge | None
    output: Tensor | None

    @property
    def slot(self) -> int:
        """The slot of its weight, or else of its bias."""
        slot = self.weight if self.weight is not None else self.bias
        assert slot is not None, "a use is recorded by one of them"
        return slot

    @property
    def batch(self) -> int:
        """The number of rows: examples times windows or tokens."""
        return math.prod(self.call.input.shape[: self.call.feature_axis])


class _Tap(torch.Tensor):
    """A weight that records the linear operations it takes part in."""

    slot: int
    record: list[Use | None]

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in COMPOSED:
            return COMPOSED[func](*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if func in METADATA:
            return result
        call = LinearCall.read(func, args, kwargs) if func in LINEAR_OPS else None
        if call is None or isinstance(call.input, _Tap):
            next(value for value in tensors_in((args, kwargs)) if isinstance(value, _Tap)).record.append(None)
            return result
        edge = None
        if torch.is_grad_enabled():
            _keep_format(call.input)
            if not result.requires_grad:  # the first layer; cloned, since a leaf must not change in place
                result.requires_grad_()
                edge = get_gradient_edge(result)
                result = result.clone()
            else:
                edge = get_gradient_edge(result)
        taps = [tap for tap in (call.weight, call.bias) if isinstance(tap, _Tap)]
        weight, bias = (tap.slot if isinstance(tap, _Tap) else None for tap in (call.weight, call.bias))
        settings = {**dict(zip(("stride", "padding", "dilation", "groups"), args[3:])), **kwargs}
        kept = None if edge else result
        taps[0].record.append(Use(func, call, settings, weight, bias, call.input._version, edge, kept))
        return result


def _keep_format(x: Tensor) -> None:
    """Keep the gradient of a channels-last tensor in that format, since mixed formats cost ten times as much."""
    last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    if last and x.requires_grad:
        x.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))


@dataclass(frozen=True)
class TapPlan:
    """The layout of the batch in each use's input, and the cost of a pass.

    Attributes:
        slots: The slots with random weights, the only ones that need gradients.
        inner: Per use, the number of rows along the batch axes after the axis of examples.
        channels_last: Whether the model runs in that memory format, the fastest for convolutions.
        size: Values stored per example in a pass.
    """

    slots: tuple[int, ...]
    inner: tuple[int, ...]
    channels_last: bool
    size: int


def tapped_pass(
    model: nn.Module, layout: Layout, mean: Tensor, x: ModelInput, slots: Collection[int]
) -> tuple[Any, list[Use | None]]:
    """Return the output at the mean, and the linear operations on these slots in order; None for other uses."""
    record: list[Use | None] = []
    weights = layout.views(mean.detach())
    for number in slots:
        tap = weights[number] = weights[number].as_subclass(_Tap)
        tap.slot, tap.record = number, record
    return layout.run(model, weights, x), record


def make_plan(model: nn.Module, layout: Layout, mean: Tensor, random: Sequence[int], x: ModelInput) -> TapPlan | None:
    """Find which rows of every layer's input belong to an example, by NaN in one example of three.

    Args:
        model: A model without its weights.
        layout: The weights.
        mean: Their means, (n,).
        random: The slots with random weights.
        x: Inputs.

    Returns:
        The plan, or None if the model mixes examples, or uses weights in a way that no formula here covers.
    """
    if isinstance(x, Inputs) or not x.is_floating_point():
        return None
    slots = tuple(random or range(len(layout)))
    three = x[:1].repeat(3, *(1,) * (x.ndim - 1))
    three[1] = math.nan
    for channels_last in (True, False) if x.ndim == 4 else (False,):
        with torch.no_grad():
            try:
                _, record = tapped_pass(model, layout, mean, arranged(three, channels_last), slots)
            except RuntimeError:  # for example view() in the wrong memory format
                continue
        inner = [None if use is None else _inner(use) for use in record]
        if not inner or None in inner:
            return None
        size = sum(use.call.input.numel() + use.batch * use.call.weight.shape[0] for use in record if use) // 3
        # channels_last helps gradients of convolutions only; without them it slows the pass down.
        convolves = any(use is not None and use.op is not F.linear for use in record)
        return TapPlan(slots, tuple(i for i in inner if i is not None), channels_last and convolves, size)
    return None


def _inner(use: Use) -> int | None:
    """Return the only `inner` with which batch axes of shape (outer, 3, inner) explain the positions of NaN."""
    lead = use.call.input.shape[: use.call.feature_axis]
    rows = use.call.input.reshape(math.prod(lead), -1).isnan().any(1).nonzero().flatten()
    if use.batch % 3 or not rows.numel():
        return None
    fits = [
        inner
        for inner in range(1, use.batch // 3 + 1)
        if use.batch // 3 % inner == 0 and bool(((rows // inner) % 3 == 1).all())
    ]
    return fits[0] if len(fits) == 1 else None


def arranged(x: Tensor, channels_last: bool) -> Tensor:
    """Return the input in the memory format of the plan."""
    return x.to(memory_format=torch.channels_last) if channels_last else x  # contiguous() ignores a single channel
