"""Flipout (Wen et al. 2018): one weight draw per batch, decorrelated by random signs per example."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, mean_of
from pocketbayes.propagation.linear_ops import LinearCall, LinearRules, shape_per_example
from pocketbayes.propagation.local import Local


class FlipoutRules(LinearRules):
    """`y = op(x, M) + op(x * s, S * eps) * r` with random signs s per input and r per output of each example."""

    name = "flipout"

    def apply(self, call: LinearCall, weight: Gaussian) -> Tensor:
        """Draw the outputs of one linear operation."""
        x, bias = call.input, call.bias
        mean = call.run(x, weight.loc, mean_of(bias))
        delta_bias = bias.stddev * self.normal(bias.loc) if isinstance(bias, Gaussian) else None
        delta = weight.stddev * self.normal(weight.loc)
        change = call.run(x * self._signs(x, call.feature_axis), delta, delta_bias)
        return mean + change * self._signs(change, call.feature_axis)

    def _signs(self, x: Tensor, feature_axis: int) -> Tensor:
        """Draw +-1 per example and feature."""
        shape = shape_per_example(x, feature_axis)
        return torch.randint(0, 2, shape, **self.options(x)).to(x.dtype).mul(2).sub(1)


FLIPOUT = FlipoutRules()


class Flipout(Local):
    """One draw per batch with random signs per example; dropout weights drop inputs, as in `local`."""

    name = "flipout"
    table = FLIPOUT
