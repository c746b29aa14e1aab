"""Per-example gradients with respect to the weights from one forward and one backward pass."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors import Posterior
from pocketbayes.propagation.linear.taps import NotTappedError, TapPlan, Use, arranged, tapped_pass
from pocketbayes.propagation.linear.tied import tied_layer

MIN_EXAMPLES = 8
"""Examples needed to conclude that a layer has no gradient: a single one may find all its units inactive."""
_BLOCK = 1 << 19
"""Values in the working memory of one step, chosen to fit a processor's cache."""

_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2}


class Pass:
    """One pass at the mean from which per-example gradients can be computed."""

    def __init__(
        self, model: nn.Module, posterior: Posterior, mean: Tensor, x: Tensor, plan: TapPlan, span: tuple[int, int]
    ) -> None:
        self.posterior, self.layout = posterior, posterior.layout
        self.examples = len(x)
        with torch.enable_grad():
            output, record = tapped_pass(model, self.layout, mean, arranged(x, plan.channels_last), plan.slots)
        self.output: Tensor = output
        self.uses = [use for use in record if use is not None]
        if len(self.uses) != len(plan.inner) or len(record) != len(self.uses):
            raise NotTappedError("the model's control flow differs from that of its first call")
        self.inner, self.span = plan.inner, span

    def deltas(self, direction: Tensor, keep: bool) -> list[Tensor | None]:
        """Return the gradients of sum(direction * output) with respect to the output of every use."""
        edges = [use.edge for use in self.uses if use.edge is not None]  # none under no_grad
        gradients = iter(torch.autograd.grad(self.output, edges, direction, retain_graph=keep, allow_unused=True))
        deltas = [None if use.edge is None else next(gradients) for use in self.uses]
        for use in self.uses:
            if use.version != use.call.input._version:
                name = self.layout.slots[use.slot].name
                raise UserError(
                    f"the input of {name!r} is changed in place after the layer has used it, and its gradient is lost: "
                    "write x = x + ... there, or use propagation='sample'"
                )
        for use, delta in zip(self.uses, deltas):
            if delta is None or (self.examples >= MIN_EXAMPLES and not (bool(delta[:1].any()) or bool(delta.any()))):
                _warn_of_no_gradient(self.layout.slots[use.slot].name)
        return deltas

    def variance(self, direction: Tensor, keep: bool = False) -> Tensor:
        """Compute `sum_i (dy/dw_i)^2 var(w_i)`, (b,), for independent weights."""
        total = self.output.new_zeros(self.examples)
        views = self.layout.views(self.posterior.held_moments()[1].detach().square())
        by_slot: dict[int, list[tuple[int, Tensor]]] = {}
        for number, (use, delta) in enumerate(zip(self.uses, self.deltas(direction, keep))):
            for slot in (use.weight, use.bias):
                if slot is not None and delta is not None:
                    by_slot.setdefault(slot, []).append((number, delta))
        for slot, parts in by_slot.items():
            total += self._slot_variance(slot, parts, views[slot])
        return total

    def _slot_variance(self, slot: int, parts: Sequence[tuple[int, Tensor]], var: Tensor) -> Tensor:
        uses = [_Rows(self.uses[number], delta, self.examples, self.inner[number]) for number, delta in parts]
        if len(uses) == 1 and uses[0].use.weight == slot and uses[0].flat is not None:
            d, a = uses[0].flat
            return (torch.mm(d.square(), var) * a.square()).sum(1)
        step = max(1, _BLOCK // max(rows.work(slot) for rows in uses))
        order = uses[0].order(var) if len(uses) == 1 and uses[0].use.weight == slot else var.flatten()
        total = self.output.new_zeros(self.examples)
        for start in range(0, self.examples, step):
            part = slice(start, start + step)
            if len(uses) == 1:
                gradient = uses[0].gradient(slot, part)
            else:
                gradient = torch.stack([rows.restored(slot, part) for rows in uses]).sum(0)
            total[part] = torch.mv(gradient.square_(), order)
        return total

    def gradient(self, direction: Tensor, keep: bool = False) -> Tensor:
        """Return the gradients with respect to the weights from `span[0]` to `span[1]`."""
        first, last = self.span
        flat = self.output.new_zeros(self.examples, last - first)
        for rows, number in self._by_slot(direction, keep):
            slot = self.layout.slots[number]
            for part, values in rows.parts(number):
                flat[part, slot.start - first : slot.stop - first] += values
        return flat

    def table_gradient(self, direction: Tensor, index: Tensor, size: int, keep: bool = False) -> Tensor:
        """Sum the gradients of weights that copy the same entry of a table, (b, size), block by block."""
        sums = self.output.new_zeros(self.examples, size)
        for rows, number in self._by_slot(direction, keep):
            slot = self.layout.slots[number]
            entries = index[slot.start : slot.stop]
            if rows.flat is not None and number == rows.use.weight:
                layer = tied_layer(self.posterior, number, entries.view(slot.shape), size)
                if layer is not None:
                    sums += layer.sums(*rows.flat)
                    continue
            for part, values in rows.parts(number):
                sums[part].scatter_add_(1, entries.expand_as(values), values)
        return sums

    def _by_slot(self, direction: Tensor, keep: bool) -> Iterator[tuple[_Rows, int]]:
        """Yield every use with each of its slots."""
        for number, (use, delta) in enumerate(zip(self.uses, self.deltas(direction, keep))):
            if delta is not None:
                rows = _Rows(use, delta, self.examples, self.inner[number])
                yield from ((rows, slot) for slot in (use.weight, use.bias) if slot is not None)


class _Rows:
    """A use's inputs and output gradients by example: `dy/dW = sum over rows of delta input^T`."""

    def __init__(self, use: Use, delta: Tensor, examples: int, inner: int) -> None:
        self.use = use
        self.axis = use.call.feature_axis
        self.input: Tensor = self._by_example(use.call.input, examples, inner)
        self.delta: Tensor = self._by_example(delta, examples, inner)

    def _by_example(self, x: Tensor, examples: int, inner: int) -> Tensor:
        """Return (examples, rows, features...)."""
        tail = x.shape[x.ndim + self.axis :]
        if inner * examples == math.prod(x.shape[: self.axis]):
            return x.reshape(examples, inner, *tail)
        return x.reshape(-1, examples, inner, *tail).transpose(0, 1).reshape(examples, -1, *tail)

    @property
    def flat(self) -> tuple[Tensor, Tensor] | None:
        """Output gradients and inputs if each example has one row, so that (dy/dW)^2 factorises."""
        return (self.delta[:, 0], self.input[:, 0]) if self.use.op is F.linear and self.input.shape[1] == 1 else None

    def parts(self, slot: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield gradients for blocks of examples, in the weight's order."""
        step = max(1, _BLOCK // self.work(slot))
        for start in range(0, len(self.input), step):
            part = slice(start, start + step)
            yield part, self.restored(slot, part)

    def work(self, slot: int) -> int:
        """Return the number of intermediate values for the gradient of one example."""
        weight = self.use.call.weight
        if slot != self.use.weight:
            return self.delta[0].numel()
        positions = self.delta[0].numel() // max(weight.shape[0], 1)
        return weight.numel() + positions * (weight[0].numel() + weight.shape[0])

    def gradient(self, slot: int, part: slice) -> Tensor:
        """Return (examples, size) in the order of `order`."""
        if slot != self.use.weight:
            axis = self.axis % self.delta.ndim
            return self.delta[part].sum([i for i in range(1, self.delta.ndim) if i != axis])
        if self.use.op is F.linear:
            return torch.bmm(self.delta[part].mT, self.input[part]).flatten(1)
        if self.use.op in _CONVOLUTIONS:
            return self._convolution(part)
        return self._any(part)

    def order(self, weight: Tensor) -> Tensor:
        """Flatten a tensor of the weight's shape in the order of `gradient`."""
        if self.use.op not in _CONVOLUTIONS:
            return weight.flatten()
        return weight.movedim(1, -1).flatten()  # convolutions: channels last

    def restored(self, slot: int, part: slice) -> Tensor:
        """Return (examples, size) in the weight's order."""
        gradient = self.gradient(slot, part)
        if slot != self.use.weight or self.use.op not in _CONVOLUTIONS:
            return gradient
        shape = self.use.call.weight.shape
        return gradient.view(-1, shape[0], *shape[2:], shape[1]).movedim(-1, 2).flatten(1)

    @cached_property
    def _windows(self) -> tuple[Tensor, Tensor]:
        """A convolution's output gradients (examples, rows..., features) and, as a view, their input patches."""
        weight, axes = self.use.call.weight, _CONVOLUTIONS[self.use.op]
        kernel = weight.shape[2:]
        stride, dilation, pads = _geometry(self.use.settings, kernel, axes)
        x = F.pad(self.input.movedim(2, -1), (0, 0, *pads))
        delta = self.delta.movedim(2, -1)
        steps = x.stride()
        moves = [step * s for step, s in zip(steps[2:-1], stride)]
        taps = [step * d for step, d in zip(steps[2:-1], dilation)]
        shape = (*delta.shape[:-1], *kernel, x.shape[-1])
        return delta, x.as_strided(shape, (*steps[:2], *moves, *taps, steps[-1]))

    def _convolution(self, part: slice) -> Tensor:
        """Multiply input patches by the output's gradient and sum over positions."""
        delta, patches = (x[part] for x in self._windows)
        groups = int(self.use.settings.get("groups", 1))
        inputs = self.use.call.weight[0].numel()
        examples, rows = len(delta), delta[0, ..., 0].numel()
        if groups == 1:
            left, right = delta.reshape(examples, rows, -1), patches.reshape(examples, rows, inputs)
            return torch.bmm(left.mT, right).flatten(1)
        if groups == delta.shape[-1] == patches.shape[-1]:
            return _depthwise(delta, patches)
        left = delta.reshape(examples, rows, groups, -1)
        right = patches.reshape(examples, rows, -1, groups, self.use.call.weight.shape[1])
        return torch.einsum("brgo,brkgi->bgoki", left, right).flatten(1)

    def _any(self, part: slice) -> Tensor:
        """Differentiate the operation itself, for transposed and three-dimensional convolutions."""
        weight = self.use.call.weight.as_subclass(torch.Tensor)

        def one(x: Tensor, delta: Tensor) -> Tensor:
            pull = torch.func.vjp(lambda w: self.use.call.run(x, w, None), weight)[1]
            return pull(delta)[0]  # type: ignore[no-any-return]

        gradient: Tensor = torch.func.vmap(one)(self.input[part], self.delta[part])
        return gradient.flatten(1)


def _depthwise(delta: Tensor, patches: Tensor) -> Tensor:
    """Sum output gradient times input over positions, for one kernel element after the other.

    Patches are views of the input; unfolding them would copy it once per kernel element.
    """
    axes = delta.ndim - 2
    kernel = patches.shape[1 + axes : -1]
    gradient = delta.new_empty(len(delta), delta.shape[-1], *kernel)
    product = torch.empty_like(delta)
    for place in itertools.product(*(range(size) for size in kernel)):
        torch.mul(delta, patches[(slice(None),) * (1 + axes) + place], out=product)
        gradient[(slice(None),) * 2 + place] = product.flatten(1, axes).sum(1)
    return gradient.flatten(1)


def _geometry(settings: Mapping[str, Any], kernel: Sequence[int], axes: int) -> tuple[list[int], list[int], list[int]]:
    """Return stride, dilation, and padding in the format of F.pad."""

    def each(value: Any) -> list[int]:
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        return values * axes if len(values) < axes else values

    stride, dilation = each(settings.get("stride", 1)), each(settings.get("dilation", 1))
    padding = settings.get("padding", 0)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in each(padding)]
    return stride, dilation, [p for side in reversed(sides) for p in side]


def looped_gradient(model: nn.Module, posterior: Posterior, x: Tensor, direction: Tensor) -> Tensor:
    """Return the gradients (b, n) one example after the other, for models that `Pass` does not cover."""
    rows = []
    mean = posterior.weight_means().detach()
    for example, row in zip(x.split(1), direction.split(1)):
        with torch.enable_grad():
            flat = mean.clone().requires_grad_()
            rows.append(torch.autograd.grad(posterior.layout.run(model, flat, example), flat, row)[0])
    gradient = torch.stack(rows)
    for number in posterior.random_slots():
        slot = posterior.layout.slots[number]
        if len(gradient) >= MIN_EXAMPLES and not bool(gradient[:, slot.start : slot.stop].any()):
            _warn_of_no_gradient(slot.name)
    return gradient


def _warn_of_no_gradient(name: str) -> None:
    """Warn that a weight's uncertainty is ignored."""
    warnings.warn(
        f"propagation='linear' finds no gradient of the output with respect to {name!r} (rounding, comparison, detach "
        "and no_grad stop it), so its uncertainty is ignored: use propagation='sample'",
        stacklevel=2,
    )
