"""Bytes and arithmetic of one training step, counted over its tensors and products."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pocketbayes.network import Network
from pocketbayes.posteriors.gaussian import Op
from pocketbayes.posteriors.layout import weights_in_place
from pocketbayes.posteriors.sparse import Sparse
from pocketbayes.propagation.linear_ops import LINEAR_OPS, LinearCall


def training_bytes(network: Network, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes kept between steps: parameters, buffers, gradients, optimiser state."""
    parameters = network.census().memory_bytes
    for module in (network.prior, network.likelihood):
        parameters += 0 if module is None else sum(t.nbytes for t in module.state_dict().values())
    gradients = sum(p.grad.nbytes for p in network.parameters() if p.grad is not None)
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor))
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": state,
        "total": parameters + gradients + state,
    }


def training_flops(network: Network, x: Tensor) -> dict[str, float]:
    """Return the floating-point operations per example of one training pass, in products with the network's weights.

    A multiplication and its addition count as two. Local noise and flipout take two products where a draw takes one.

    Returns:
        "dense": forward plus twice that backward, over all weights. "present": the same over present weights only, as
        papers count. "executed": what actually runs: all weights in dense products, present ones in sparse products,
        without the gradient of the network's inputs.
    """
    posterior = network.posterior
    layout = network.layout
    model = copy.deepcopy(network.model).eval()
    views = [view.requires_grad_() for view in layout.views(posterior.moments()[0].detach())]
    counter = _Counter({id(view): slot.name for view, slot in zip(views, layout.slots)})
    with torch.enable_grad(), weights_in_place(model, layout.by_site(views)), counter:
        model(x)
    products = 2 if network.propagation in ("local", "flipout") and network.is_random else 1
    densities = posterior.densities() if isinstance(posterior, Sparse) else {}
    fast = posterior.fast_slots() if isinstance(posterior, Sparse) and network.propagation != "flipout" else []
    totals = {"dense": 0.0, "present": 0.0, "executed": 0.0}
    for name, (forward, passes) in counter.calls:
        cost = products * forward / len(x)
        density = densities.get(name, 1.0)
        totals["dense"] += 3 * cost
        totals["present"] += 3 * cost * density
        totals["executed"] += passes * cost * (density if name in fast else 1.0)
    return totals


class _Counter(TorchFunctionMode):
    """A counter of the products with weights of the layout, and their passes: one forward, 1 or 2 backward."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.calls: list[tuple[str, tuple[int, int]]] = []

    def __torch_function__(
        self, func: Op, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in LINEAR_OPS:
            call = LinearCall.read(func, args, kwargs or {})
            name = self.names.get(id(call.weight))
            if name is not None:
                transposed = "transpose" in func.__name__
                positions = call.input.numel() if transposed else output.numel()
                forward = 2 * positions * call.weight[0].numel()
                self.calls.append((name, (forward, 3 if call.input.requires_grad else 2)))
        return output
