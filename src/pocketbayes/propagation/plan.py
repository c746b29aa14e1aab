"""A counting pass that decides which weights may stay Gaussian in a model's operations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from pocketbayes.base.errors import UserError
from pocketbayes.base.randomness import Randomness
from pocketbayes.posteriors.gaussian import METADATA, Op, RuleTable, mean_of, tensors_in
from pocketbayes.posteriors.layout import Layout

Plan = tuple[bool, ...]
"""Whether each slot's weight stays Gaussian."""


_LIKENESS: frozenset[Op] = frozenset(
    (torch.Tensor.view_as, torch.Tensor.reshape_as, torch.Tensor.expand_as, torch.Tensor.type_as)
)
"""Operations that use only the shape or type of their second argument."""


class _Probe(torch.Tensor):
    """A weight that counts the operations on it.

    Operations inside `autograd.Function.apply`, which disables forward-mode gradients, are marked as hidden, since the
    function's own backward pass ignores the noise.
    """

    table: RuleTable
    ruled: int
    other: int
    hidden: bool

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if func not in METADATA:
            for value in tensors_in((args[:1], kwargs) if func in _LIKENESS else (args, kwargs)):
                if isinstance(value, _Probe):
                    value.hidden |= not torch._C._is_fwd_grad_enabled()
                    if value.table.covers(func, args, kwargs, value):
                        value.ruled += result is not value  # an operation that returns the weight itself is no use
                    else:
                        value.other += 1
        return result


def count_uses(
    model: nn.Module, layout: Layout, mean: Tensor, table: RuleTable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Plan:
    """Run the model once and return the plan.

    A weight stays Gaussian if it is used exactly once, by a rule. Others are drawn before the forward pass: tied
    weights, modules called twice, operations without a rule, and weights without a visible use or hidden in an
    `autograd.Function`. A table that does not draw refuses tied and hidden weights by name, and operations without a
    rule when they are reached. Inputs, buffers and random generators are left unchanged.
    """
    probes: list[_Probe] = []
    for view in layout.views(mean.detach()):
        probe = view.as_subclass(_Probe)
        probe.table, probe.ruled, probe.other, probe.hidden = table, 0, 0, False
        probes.append(probe)
    _run(model, layout, probes, args, kwargs)
    if table.draws:
        return tuple(probe.ruled == 1 and probe.other == 0 and not probe.hidden for probe in probes)
    for slot, probe in zip(layout.slots, probes):
        if probe.ruled + probe.other > 1:
            raise UserError(
                f"{slot.name!r} is used {probe.ruled + probe.other} times in a pass: {table.name} propagation would "
                "treat the uses as independent, which they are not; train with a method that draws (bbb, lrt), or "
                "predict with propagation='linear' or 'sample'"
            )
    unseen = [probe.hidden or not probe.ruled + probe.other for probe in probes]
    if any(unseen) and _matters(unseen, model, layout, mean.detach(), args, kwargs):
        names = [slot.name for slot, hidden in zip(layout.slots, unseen) if hidden]
        raise UserError(
            f"{table.name} propagation cannot follow {', '.join(map(repr, names))}: a function such as "
            "autograd.Function.apply hides its use; use propagation='sample'"
        )
    return (True,) * len(probes)


def _run(
    model: nn.Module, layout: Layout, views: Sequence[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run one pass with these weights without side effects."""
    with torch.no_grad(), Randomness(0).redirected(), _borrowed_buffers(model):
        args, kwargs = tree_map_only(Tensor, lambda x: mean_of(x).clone(), (args, dict(kwargs)))
        with forward_ad._set_fwd_grad_enabled(True):  # also under inference_mode
            return layout.run(model, views, *args, **kwargs)


def _matters(
    unseen: Sequence[bool],
    model: nn.Module,
    layout: Layout,
    mean: Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> bool:
    """Return whether weights without a visible use affect the output, by setting them to NaN.

    Weights of a branch that does not run, such as an auxiliary head in evaluation, do not.
    """
    views = layout.views(mean)
    broken = [torch.full_like(view, math.nan) if hidden else view for view, hidden in zip(views, unseen)]
    return any(bool(output.isnan().any()) for output in tensors_in(_run(model, layout, broken, args, kwargs)))


@contextmanager
def _borrowed_buffers(model: nn.Module) -> Iterator[None]:
    """Replace the buffers by copies within the block; shared buffers stay shared."""
    originals = [(module, dict(module._buffers)) for module in model.modules()]
    copies: dict[Tensor, Tensor] = {}
    for module, buffers in originals:
        for name, buffer in buffers.items():
            if buffer is not None:
                module._buffers[name] = copies.setdefault(buffer, buffer.clone())
    try:
        yield
    finally:
        for module, buffers in originals:
            module._buffers.clear()
            module._buffers.update(buffers)
