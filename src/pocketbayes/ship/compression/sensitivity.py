"""Sensitivity of a network's outputs to errors in each layer's weights, which decides where bits go.

First, last and depthwise layers have few weights that many outputs depend on, so bits are cheap there. The curvature of
the loss measures this for any network that can be differentiated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.methods.curvature import diagonal_curvature
from pocketbayes.network import Network

EXAMPLES = 64
"""Examples that the curvature is averaged over: one number per layer needs few."""
LEAST = 1e-4
"""Smallest sensitivity, relative to the largest, of layers that these examples do not reach."""


def layer_sensitivity(network: Network, batches: Sequence[ModelInput]) -> Tensor | None:
    """Return the change of the outputs if all weights of a layer change by their own size, one value per slot.

    This is the root mean square of the layer's weights times that of the curvature's square root.

    Args:
        network: The network.
        batches: Inputs, of which the first few are used.

    Returns:
        (slots,), or None for networks that cannot be differentiated or have another likelihood than classes and
        Gaussian noise.
    """
    parts = itertools.chain.from_iterable(batch.split(EXAMPLES) for batch in batches)
    first = [(part.to(network.device), torch.empty(0)) for part in itertools.islice(parts, 1)]
    try:
        curvature = diagonal_curvature(network, first)[0]
    except (UserError, RuntimeError):  # such as recurrent layers on a GPU, which only differentiate while training
        return None
    with torch.no_grad():
        views = zip(network.layout.views(network.posterior.moments()[0]), network.layout.views(curvature))
        sizes = [weight.square().mean() * own.mean() if own.numel() else own.sum() for weight, own in views]
    if not sizes:
        return None
    found = torch.stack(sizes).sqrt()
    return found.clamp(min=LEAST * float(found.max())) if bool(found.max() > 0) else None
