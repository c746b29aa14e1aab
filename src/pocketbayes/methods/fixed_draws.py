"""A posterior's draws as a mixture, each with batch-norm statistics of its own."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch

from pocketbayes.base.errors import UserError
from pocketbayes.base.seeds import derive_seed
from pocketbayes.data.batches import as_source, batches
from pocketbayes.methods.recalibration import (
    Statistics,
    batch_norm_statistics,
    batch_norms,
    correct_statistics,
)
from pocketbayes.network import Mixture, Network
from pocketbayes.posteriors import Point


def fix_draws(
    net: Network,
    data: Any = None,
    *,
    samples: int = 10,
    seed: int = 0,
    statistics: Literal["mean", "draws"] | None = None,
    batch_size: int = 256,
) -> Mixture:
    """Return some draws of the weights as the members of a mixture, with batch-norm statistics of their own.

    The running statistics of a batch norm belong to the weights that they were recorded with. A draw is other weights,
    and answers with stale statistics unless they are corrected: relative to those in store, by what draw and store show
    on the same data, as in `recalibrate`. Linear and moments propagation answer around the mean, with the statistics in
    store.

    Args:
        net: A network with stds.
        data: Some hundred training examples; not needed without batch norm.
        samples: The number of draws.
        seed: Of the draws.
        statistics: The weights that the running statistics in store belong to: the "mean", as of a given model, or
            "draws", as of a network that was trained with weight samples. None for "draws" after `fit`, else "mean".
        batch_size: Examples a batch.

    Raises:
        UserError: If the network has batch norm and there are no data.
    """
    if samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    if batch_norms(net) and data is None:
        raise UserError("the network has batch norm: give data=, some hundred training examples, for its statistics")
    draws = [_draw(net, derive_seed(seed, number)) for number in range(samples)]
    if batch_norms(net):
        stream = batches(as_source(data), batch_size, shuffle_seed=0)
        _, (own, *each) = batch_norm_statistics([net, *draws], stream)
        trained = net.health is not None  # as fit records it
        by_draws = trained if statistics is None else statistics == "draws"
        reference = _average(each) if by_draws else own
        for draw, found in zip(draws, each):
            correct_statistics(draw, found, net, reference)
    return Mixture(draws).eval()


@torch.no_grad()
def _draw(net: Network, seed: int) -> Network:
    generator = torch.Generator(device=net.device).manual_seed(seed)
    noise = torch.randn(net.posterior.noise_size, generator=generator, device=net.device)
    weights = net.posterior.sample(noise.to(next(net.parameters()).dtype))
    draw = Network(
        copy.deepcopy(net.model),
        Point(net.layout, weights),
        prior=copy.deepcopy(net.prior),
        likelihood=copy.deepcopy(net.likelihood),
        propagation="mean",
    )
    draw.info, draw.method = net.info, net.method
    return draw


def _average(each: list[Statistics]) -> Statistics:
    """Return the mean of the draws' means and variances, as a running average over drawn weights has it."""
    return [
        (torch.stack([mean for mean, _ in pairs]).mean(0), torch.stack([var for _, var in pairs]).mean(0))
        for pairs in zip(*each)
    ]
