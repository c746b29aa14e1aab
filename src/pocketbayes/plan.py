"""One counting pass, before a model runs with Gaussian weights: which of them may stay Gaussian?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pocketbayes.gaussian import METADATA, Op, RuleTable, tensors_in
from pocketbayes.layout import Layout, placed

Plan = tuple[bool, ...]
"""Per slot of the layout: does its weight stay Gaussian?"""


class _Probe(torch.Tensor):
    """A weight that counts the operations it meets."""

    table: RuleTable
    ruled: int
    other: int

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in METADATA:
            for value in tensors_in((args, kwargs)):
                if isinstance(value, _Probe):
                    if value.table.covers(func, args, kwargs, value):
                        value.ruled += 1
                    else:
                        value.other += 1
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def count_uses(
    model: nn.Module, layout: Layout, mean: Tensor, table: RuleTable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Plan:
    """Runs the model once and returns the plan.

    A weight stays Gaussian if it is used exactly once, by a rule. Every other is to be drawn before the forward pass:
    tied weights, modules called twice, operations without a rule, and weights that no operation was seen to use, for
    `autograd.Function.apply` hides its uses. The inputs, the buffers and all random generators stay as they were.
    """
    probes: list[_Probe] = []
    weights: dict[str, Tensor] = {}
    for slot, view in zip(layout.slots, layout.views(mean.detach())):
        probe = view.as_subclass(_Probe)
        probe.table, probe.ruled, probe.other = table, 0, 0
        probes.append(probe)
        weights |= dict.fromkeys(slot.sites, probe)
    cuda = [mean.device] if mean.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(cuda), placed(model, weights), _borrowed_buffers(model):
        args, kwargs = tree_map_only(Tensor, Tensor.clone, (args, dict(kwargs)))
        model(*args, **kwargs)
    return tuple(probe.ruled == 1 and probe.other == 0 for probe in probes)


@contextmanager
def _borrowed_buffers(model: nn.Module) -> Iterator[None]:
    """Copies in place of the buffers within the block; buffers that modules share stay shared."""
    own = [(module, dict(module._buffers)) for module in model.modules()]
    copies: dict[Tensor, Tensor] = {}
    for module, buffers in own:
        for name, buffer in buffers.items():
            if buffer is not None:
                module._buffers[name] = copies.setdefault(buffer, buffer.clone())
    try:
        yield
    finally:
        for module, buffers in own:
            module._buffers.clear()
            module._buffers.update(buffers)
