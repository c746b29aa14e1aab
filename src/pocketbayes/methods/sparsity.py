"""The distribution of a sparse network's weights over layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.sparse import Sparse

Distribution = Literal["uniform", "erdos-renyi", "erdos-renyi-kernel", "global"]


def layer_counts(
    shapes: Sequence[Sequence[int]],
    density: float,
    distribution: Distribution = "uniform",
    dense: Sequence[bool] | None = None,
) -> list[int]:
    """Return the number of weights of each layer.

    uniform, global: density n. erdos-renyi: e (n_in + n_out), as in a random graph, so that small layers are denser;
    erdos-renyi-kernel: e times the sum of all dimensions; e such that the total is right, no layer above its size (Evci
    et al. 2020).

    The total over layers that are not `dense` is exactly round(density n), n their weights; every layer has at least
    one.
    """
    if not 0 < density <= 1:
        raise UserError(f"density must lie above 0 and not above 1, not {density}")
    check_choice("distribution", distribution, get_args(Distribution))
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
    """Return the counts before rounding, none above the layer's size."""
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
    """Return integers from 1 to the layer's size with an exact total, close to the shares."""
    counts = [min(max(int(share), 1), size) for share, size in zip(shares, sizes)]
    while sum(counts) != total:
        step = 1 if sum(counts) < total else -1
        free = [i for i, (count, size) in enumerate(zip(counts, sizes)) if 1 <= count + step <= size]
        counts[max(free, key=lambda i: step * (shares[i] - counts[i]))] += step
    return counts


def describe_sparsity(posterior: Posterior) -> dict[str, Any]:
    """Return the number of weights swapped in training; empty for dense posteriors."""
    return {"swapped": int(posterior.swapped)} if isinstance(posterior, Sparse) else {}
