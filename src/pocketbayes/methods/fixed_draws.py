"""A posterior's draws as a mixture, with separate batch-norm statistics."""

from __future__ import annotations

import copy
from typing import Literal

import torch

from pocketbayes.base.errors import UserError
from pocketbayes.base.seeds import derive_seed
from pocketbayes.data.batches import Data, as_source, batches
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
    data: Data | None = None,
    *,
    samples: int = 10,
    seed: int = 0,
    statistics: Literal["mean", "draws"] | None = None,
    batch_size: int = 256,
) -> Mixture:
    """Return draws of the weights as the members of a mixture, with their own batch-norm statistics.

    The running statistics of a batch norm belong to the weights they were recorded with, and are stale for a draw. They
    are corrected by the ratio of the statistics of the draw to those of the original weights on the same data, as in
    `recalibrate`. Linear and moments propagation predict around the mean, with the stored statistics.

    Args:
        net: A network with stds.
        data: A few hundred training examples; not needed without batch norm.
        samples: The number of draws.
        seed: Seed of the draws.
        statistics: The weights with which the stored statistics were recorded: the "mean", as in a pretrained model, or
            "draws", as in training with weight samples. None for "draws" after `fit`, else "mean".
        batch_size: Examples per batch.

    Raises:
        UserError: If the network has batch norm and there are no data.
    """
    if samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    if batch_norms(net) and data is None:
        raise UserError("the network has batch norm: give data=, a few hundred training examples, for its statistics")
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
    return copy.deepcopy(net).with_posterior(Point(net.layout, weights), propagation="mean")


def _average(each: list[Statistics]) -> Statistics:
    """Average the draws' means and variances, like a running average over drawn weights."""
    return [
        (torch.stack([mean for mean, _ in pairs]).mean(0), torch.stack([var for _, var in pairs]).mean(0))
        for pairs in zip(*each)
    ]
