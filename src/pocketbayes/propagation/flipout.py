"""Flipout (Wen et al. 2018): one weight draw a batch, decorrelated by random signs per example."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, noise_like
from pocketbayes.propagation.linear_ops import LinearCall, LinearRules, loc, shape_per_example


class Flipout(LinearRules):
    """y = op(x, M) + op(x * s, S * eps) * r, with signs s per input and r per output of each example."""

    name = "flipout"

    def apply(self, call: LinearCall, weight: Gaussian) -> Tensor:
        """Draws the outputs of one linear operation."""
        x, bias = call.input, call.bias
        mean = call.run(x, weight.loc, loc(bias))
        delta_bias = bias.stddev * noise_like(bias.loc) if isinstance(bias, Gaussian) else None
        delta = weight.stddev * noise_like(weight.loc)
        change = call.run(x * _signs(x, call.feature_axis), delta, delta_bias)
        return mean + change * _signs(change, call.feature_axis)


def _signs(x: Tensor, feature_axis: int) -> Tensor:
    """+-1 per example and feature."""
    return torch.randint(0, 2, shape_per_example(x, feature_axis), device=x.device).to(x.dtype).mul(2).sub(1)


FLIPOUT = Flipout()
