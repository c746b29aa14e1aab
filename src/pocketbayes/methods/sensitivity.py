"""Sensitivity of the loss or the output to each weight, and the choice of the most sensitive weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.base.process_group import ALONE, ProcessGroup
from pocketbayes.network import Network
from pocketbayes.posteriors.layout import Layout, evaluating

Kind = Literal["gradient", "squared", "output"]


def sensitivities(
    network: Network,
    batches: Iterable[tuple[Tensor, Tensor]],
    kind: Kind = "gradient",
    *,
    chunk: int = 16,
    team: ProcessGroup = ALONE,
) -> Tensor:
    """Return one score per weight at the posterior mean, (n,), in evaluation mode.

    gradient: mean over batches of |dL/dw|, L the batch's mean NLL. squared: sqrt of the mean over examples of
    (dl/dw)^2, l the example's own NLL: the diagonal Fisher information. output: mean over batches of |d mean(y)/dw|, y
    the network's output.

    Args:
        network: A network with a likelihood.
        batches: Pairs (x, y) on the network's device.
        kind: One of the three.
        chunk: Examples whose gradients are in memory ("squared" only).
        team: Processes that divide the batches; each is given all of them.
    """
    check_choice("sensitivity", kind, get_args(Kind))
    likelihood = network.likelihood
    assert likelihood is not None, "sensitivities need a likelihood"
    with torch.no_grad():
        mean = network.posterior.moments()[0].clone()
    total, weight = torch.zeros_like(mean), 0

    def loss(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        output = network.run_at(flat, x)
        return output.mean() if kind == "output" else likelihood.nll(output, y)

    def example_loss(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return loss(flat, x[None], y[None])

    with evaluating(network):
        for x, y in itertools.islice(batches, team.rank, None, team.size):
            if kind == "squared":
                each = torch.func.vmap(torch.func.grad(example_loss), in_dims=(None, 0, 0))
                for part_x, part_y in zip(x.split(chunk), y.split(chunk)):
                    total += each(mean, part_x, part_y).square().sum(0)
                weight += len(x)
            else:
                at = mean.requires_grad_()
                total += torch.autograd.grad(loss(at, x, y), at)[0].abs()
                weight += 1
    team.sum(total)
    weight = sum(team.gather(weight))
    if not weight:
        raise UserError("no data to measure sensitivities on")
    score = total / weight
    return score.sqrt() if kind == "squared" else score


def largest(score: Tensor, count: int) -> Tensor:
    """Return the ascending positions of the `count` largest scores, the first ones among ties."""
    if count <= 0:
        return torch.empty(0, dtype=torch.int64, device=score.device)
    least = score.topk(min(count, len(score)), sorted=False).values.min()
    if bool(least.isnan()):  # NaN compares false with everything
        return torch.sort(score, descending=True, stable=True).indices[:count].sort().values
    above = (~(score <= least)).nonzero().flatten()
    equal = (score == least).nonzero().flatten()[: count - len(above)]
    return torch.cat([above, equal]).sort().values


def largest_per_slot(score: Tensor, layout: Layout, rate: float) -> Tensor:
    """Return the positions of the largest `rate` of scores in every slot."""
    return torch.cat(
        [slot.start + largest(score[slot.start : slot.stop], round(rate * slot.size)) for slot in layout.slots]
    )
