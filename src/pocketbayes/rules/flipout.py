"""Flipout (Wen et al. 2018): one weight draw a batch, decorrelated by random signs per example."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.gaussian import Gaussian, noise_like
from pocketbayes.rules.linear_ops import LinearCall, LinearRules, loc


class Flipout(LinearRules):
    """y = op(x, M) + op(x * s, S * eps) * r, with signs s per input and r per output of each example."""

    name = "flipout"

    def apply(self, call: LinearCall) -> Tensor:
        """Draws the outputs of one linear operation."""
        weight, bias, x = call.weight, call.bias, call.input
        assert isinstance(weight, Gaussian)
        mean = call.run(x, weight.loc, loc(bias))
        delta_bias = bias.stddev * noise_like(bias.loc) if isinstance(bias, Gaussian) else None
        delta = weight.stddev * noise_like(weight.loc)
        change = call.run(x * _signs(x, call.channels_first), delta, delta_bias)
        return mean + change * _signs(change, call.channels_first)


def _signs(x: Tensor, channels_first: bool) -> Tensor:
    """+-1 per example and feature; the positions of a convolution share theirs, as they share its weight."""
    if not channels_first:
        shape = (*x.shape[:1], *(1,) * (x.ndim - 2), x.shape[-1]) if x.ndim > 1 else x.shape
    else:
        shape = torch.Size((x.shape[0], x.shape[1], *(1,) * (x.ndim - 2)))
    return torch.randint(0, 2, shape, device=x.device).to(x.dtype).mul(2).sub(1)


FLIPOUT = Flipout()
