"""Batch-norm statistics for changed weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError, warn
from pocketbayes.data.batches import Data, as_source, batches
from pocketbayes.network import Net, members

BatchNorm = nn.modules.batchnorm._BatchNorm
Statistics = list[tuple[Tensor, Tensor]]
"""Mean and variance of every batch norm."""
MIN_IMAGES = 1000
"""Smallest number of examples for estimating running statistics without a warning."""
MIN_IMAGES_RELATIVE = 64
"""The same for corrections, where both networks see the same examples and most of the sampling error cancels."""
SMALLEST_VARIANCE = 1e-10


def recalibrate(net: Net, data: Data, batch_size: int = 256, *, relative_to: Net | None = None) -> None:
    """Set the running mean and variance of every batch norm to those of the network at its posterior mean.

    Training records the statistics of drawn or changing weights; predictions at the mean, and networks with averaged,
    rounded or shared weights, need their own.

    With `relative_to`, the network that these weights were derived from, its stored statistics are corrected instead of
    replaced: the variance by the ratio and the mean by the difference of both networks' statistics on the same data.
    Effects missing from the data (augmentation, most of the training set) then cancel: a few hundred examples are
    enough, while plain estimates from thousands can cost several points of accuracy.

    Args:
        net: A network or mixture, changed in place; unchanged if it has no batch norm.
        data: Training data: a data set or a pair (x, y), visited in random order, a DataLoader, or an iterator of
            batches, each a representative sample of the data.
        batch_size: Examples per batch, unless `data` sets it.
        relative_to: A network or mixture of the same architecture.

    Raises:
        UserError: If `relative_to` has other batch norms.
    """
    norms = batch_norms(net)
    if not norms:
        return
    stream: Iterable[Any] = data if isinstance(data, Iterator) else batches(as_source(data), batch_size, shuffle_seed=0)
    if relative_to is None:
        _warn_of_few(replace_statistics(net, stream), MIN_IMAGES, "estimate")
        return
    reference = batch_norms(relative_to)
    if [norm.num_features for norm in norms] != [norm.num_features for norm in reference]:
        raise UserError("relative_to has other batch-norm layers than the network: give the network it was made from")
    sizes, (own, old) = batch_norm_statistics([net, relative_to], stream)
    _warn_of_few(sum(sizes), MIN_IMAGES_RELATIVE, "correct")
    correct_statistics(net, own, relative_to, old)


def correct_statistics(net: Net, own: Statistics, relative_to: Net, old: Statistics) -> None:
    """Correct the running statistics of `relative_to` by both networks' statistics on the same data."""
    for norm, source, (mean, var), (old_mean, old_var) in zip(batch_norms(net), batch_norms(relative_to), own, old):
        running_mean, running_var = _running(source)
        ratio = var.clamp(min=SMALLEST_VARIANCE) / old_var.clamp(min=SMALLEST_VARIANCE)
        _store(norm, running_mean + (mean - old_mean), running_var * ratio)


def replace_statistics(net: Net, stream: Iterable[Any]) -> int:
    """Replace the running statistics by averages over batches; return the number of examples."""
    sizes, (own,) = batch_norm_statistics([net], stream)
    for norm, (mean, var) in zip(batch_norms(net), own):
        _store(norm, mean, var)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.fill_(len(sizes))
    return sum(sizes)


def batch_norms(net: nn.Module) -> list[BatchNorm]:
    """Return the batch norms that keep running statistics, in the order of the modules."""
    return [m for m in net.modules() if isinstance(m, BatchNorm) and m.track_running_stats]


def batch_norm_statistics(nets: Sequence[Net], stream: Iterable[Any]) -> tuple[list[int], list[Statistics]]:
    """Average the inputs' mean and variance of every batch norm of some networks on the same batches.

    The networks are not changed.

    Returns:
        The number of examples in each batch, and for each network its batch norms' statistics.
    """
    sizes = []
    with ExitStack() as stack:
        collected = [stack.enter_context(_collecting(net)) for net in nets]
        for batch in stream:
            x = batch[0] if isinstance(batch, (tuple, list)) else batch
            sizes.append(len(x))
            if isinstance(x, Tensor) and x.ndim == 4:
                x = x.to(memory_format=torch.channels_last)  # large batches in training mode take half the time
            for network in (network for net in nets for network in members(net)):
                with torch.no_grad(), network.using("mean"):
                    network(network.place(x))
        return sizes, [[_running(norm) for norm in norms] for norms in collected]


@contextmanager
def _collecting(net: Net) -> Iterator[list[BatchNorm]]:
    """Let batch norms average the statistics of batches within the block, and restore them afterwards."""
    norms = batch_norms(net)
    modes = [(module, module.training) for module in net.modules()]
    before = [(norm.momentum, norm.running_mean, norm.running_var, norm.num_batches_tracked) for norm in norms]
    net.eval()
    for norm in norms:
        mean, var = _running(norm)
        norm.training, norm.momentum = True, None  # a plain average over batches
        norm.running_mean, norm.running_var = torch.zeros_like(mean), torch.ones_like(var)
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=mean.device)
    try:
        yield norms
    finally:
        for module, training in modes:
            module.training = training
        for norm, state in zip(norms, before):
            norm.momentum, norm.running_mean, norm.running_var, norm.num_batches_tracked = state


def _running(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance, which every one of `batch_norms` has."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


def _store(norm: BatchNorm, *values: Tensor) -> None:
    for running, value in zip(_running(norm), values):
        running.copy_(value)


def _warn_of_few(count: int, enough: int, what: str) -> None:
    if count < enough:
        warn(
            f"{count} examples are few to {what} batch-norm statistics: give {enough} or more"
            + (", or relative_to= the network these weights came from" if what == "estimate" else "")
        )
