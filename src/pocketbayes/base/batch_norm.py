"""Batch and instance norm with fixed running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether the model contains batch norm."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def batch_norms_to_eval(model: nn.Module) -> None:
    """Put batch and instance norm in evaluation mode, so that running statistics are used and no longer updated."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()


@contextmanager
def frozen_batch_norm(model: nn.Module) -> Iterator[None]:
    """Stop batch and instance norm in training mode from updating their running statistics within the block."""
    moved = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.training]
    before = [(m.momentum, m.num_batches_tracked) for m in moved]
    for module in moved:
        module.momentum, module.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for module, (momentum, count) in zip(moved, before):
            module.momentum, module.num_batches_tracked = momentum, count
