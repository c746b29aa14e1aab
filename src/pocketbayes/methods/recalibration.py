"""Batch norm's running statistics, computed anew for the network as it predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pocketbayes.data.batches import as_source, batches
from pocketbayes.network import Net, members


def recalibrate(net: Net, data: Any, batch_size: int = 256) -> None:
    """Sets every batch norm's running mean and variance to the average over batches, at the posterior mean.

    Training records the statistics of drawn or moving weights; a prediction at the mean, and whatever is built from
    averaged weights, wants those of the mean.

    Args:
        net: A network or mixture, changed in place. Without batch norm nothing happens.
        data: Training data: a data set or a pair (x, y), visited in a random order, a DataLoader, or an iterator of
            batches, each of which should be a fair sample of the data.
        batch_size: Examples a batch, where `data` has none of its own.
    """
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    if not norms:
        return
    before = [(module, module.training) for module in net.modules()], [norm.momentum for norm in norms]
    net.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average of all batches
        norm.training = True
    try:
        stream = data if isinstance(data, Iterator) else batches(as_source(data), batch_size, shuffle_seed=0)
        for batch in stream:
            x = batch[0] if isinstance(batch, (tuple, list)) else batch
            for network in members(net):
                with torch.no_grad(), network.using("mean"):
                    network(x.to(network.device))
    finally:
        for module, training in before[0]:
            module.training = training
        for norm, momentum in zip(norms, before[1]):
            norm.momentum = momentum
