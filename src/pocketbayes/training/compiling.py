"""A model compiled for training steps alone: validation and files see the model as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pocketbayes.network import Network

Call = Callable[..., Any]


def compiled_call(network: Network) -> Call:
    """Return the compiled call of the network's model; it is compiled when it is first used."""
    call: Call = torch.compile(network.model._call_impl)
    return call


@contextmanager
def calling(network: Network, call: Call | None) -> Iterator[None]:
    """Run the model by a compiled call within the block, if there is one."""
    if call is None:
        yield
        return
    network.model._compiled_call_impl = call
    try:
        yield
    finally:
        network.model._compiled_call_impl = None
