"""Where a sparse network keeps its weights, what it would remove, and what it saves: places, bytes, arithmetic."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.methods.sensitivity import largest
from pocketbayes.network import Network
from pocketbayes.posteriors.gaussian import Op
from pocketbayes.posteriors.layout import placed
from pocketbayes.posteriors.sparse import SCORES, Sparse, removal_score
from pocketbayes.propagation.linear_ops import LINEAR_OPS, LinearCall

Distribution = Literal["uniform", "erdos-renyi", "erdos-renyi-kernel", "global"]


def layer_counts(
    shapes: Sequence[Sequence[int]],
    density: float,
    distribution: Distribution = "uniform",
    dense: Sequence[bool] | None = None,
) -> list[int]:
    """How many weights each layer starts with.

    uniform, global: density n. erdos-renyi: e (n_in + n_out), as in a random graph, so that small layers are denser;
    erdos-renyi-kernel: e times the sum of all dimensions; e such that the total is right, no layer above its size (Evci
    et al. 2020).

    The total over the layers that are not `dense` is exactly round(density n), n their weights, but every layer has at
    least one.

    Args:
        shapes: The layers' shapes.
        density: The fraction of weights that are present, in (0, 1].
        distribution: How they are shared out.
        dense: Layers that keep all their weights, outside the count.
    """
    if not 0 < density <= 1:
        raise UserError(f"density must lie above 0 and not above 1, not {density}")
    if distribution not in get_args(Distribution):
        raise UnknownNameError("distribution", distribution, get_args(Distribution))
    sizes = [torch.Size(shape).numel() for shape in shapes]
    counts = list(sizes)
    sparse = [i for i in range(len(sizes)) if not (dense and dense[i]) and sizes[i]]
    total = max(round(density * sum(sizes[i] for i in sparse)), len(sparse))
    shares = _shares([shapes[i] for i in sparse], [sizes[i] for i in sparse], total, distribution)
    for i, count in zip(sparse, _whole(shares, [sizes[i] for i in sparse], total)):
        counts[i] = count
    return counts


def _shares(
    shapes: Sequence[Sequence[int]], sizes: Sequence[int], total: int, distribution: Distribution
) -> list[float]:
    """Counts before rounding, none above the layer's size."""
    if distribution in ("uniform", "global"):
        return [total * size / sum(sizes) for size in sizes]
    weights = [sum(shape if distribution == "erdos-renyi-kernel" else shape[:2]) for shape in shapes]
    full: set[int] = set()
    while True:
        rest = total - sum(sizes[i] for i in full)
        scale = rest / max(sum(weight for i, weight in enumerate(weights) if i not in full), 1)
        over = {i for i, weight in enumerate(weights) if i not in full and scale * weight > sizes[i]}
        if not over:
            return [sizes[i] if i in full else scale * weight for i, weight in enumerate(weights)]
        full |= over


def _whole(shares: Sequence[float], sizes: Sequence[int], total: int) -> list[int]:
    """Whole numbers from 1 to the layer's size, as near the shares as their exact total allows."""
    counts = [min(max(int(share), 1), size) for share, size in zip(shares, sizes)]
    while sum(counts) != total:
        step = 1 if sum(counts) < total else -1
        free = [i for i, (count, size) in enumerate(zip(counts, sizes)) if 1 <= count + step <= size]
        counts[max(free, key=lambda i: step * (shares[i] - counts[i]))] += step
    return counts


def removal_overlap(posterior: Sparse, fraction: float = 0.3, scale: float = 1.0) -> Tensor:
    """|A and B| / |A or B| of the weights that two scores would remove, (6, 6) in the order of `SCORES`.

    Args:
        posterior: The present weights.
        fraction: How much of every layer would be removed.
        scale: l, of the exponential scores.
    """
    std = posterior.present_std()
    mean = posterior.mean.detach()
    std = torch.zeros_like(mean) if std is None else std.detach()
    removed = torch.zeros(len(SCORES), len(mean), device=mean.device)
    for row, name in zip(removed, SCORES):
        score = removal_score(name, mean.double(), std.double(), scale, log=True)
        for begin, end in posterior.spans():
            row[begin + largest(-score[begin:end], round(fraction * (end - begin)))] = 1
    both = removed @ removed.T
    sizes = removed.sum(1)
    return both / (sizes[:, None] + sizes - both).clamp(min=1)


def training_bytes(network: Network, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of the tensors that live from step to step: parameters (and buffers), gradients, optimiser state."""
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
    """Floating-point operations of one training pass per example, in products with the network's weights.

    A multiplication and its addition count as two. Local noise and flipout take two products where a draw takes one.

    Returns:
        "dense": forward, and twice that backward, over all weights. "present": the same over the present weights alone,
        which is how papers count. "executed": what runs: all weights where products are dense, the present ones where
        they are sparse, and no gradient of the network's inputs.
    """
    posterior = network.posterior
    layout = network.layout
    model = copy.deepcopy(network.model).eval()
    views = [view.requires_grad_() for view in layout.views(posterior.moments()[0].detach())]
    counter = _Counter({id(view): slot.name for view, slot in zip(views, layout.slots)})
    with torch.enable_grad(), placed(model, layout.by_site(views)), counter:
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
    """Takes down the cost of every product with a weight of the layout, and its passes: one forward, 1 or 2 back."""

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
