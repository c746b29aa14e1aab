"""A model compiled for training steps only; validation and files use the plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pocketbayes.network import Network

Call = Callable[..., Any]


def compiled_call(network: Network) -> Call:
    """Return the compiled call of the network's model, which is compiled on first use."""
    call: Call = torch.compile(network.model._call_impl)
    return call


@contextmanager
def calling(network: Network, call: Call | None) -> Iterator[None]:
    """Run the model by the compiled call, if given, within the block."""
    if call is None:
        yield
        return
    network.model._compiled_call_impl = call
    try:
        yield
    finally:
        network.model._compiled_call_impl = None
