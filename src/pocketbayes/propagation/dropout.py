"""Dropout (Srivastava et al. 2014) as the local propagation of a dropout posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation.linear_ops import LinearCall, LinearRules, loc, shape_per_example


class DropoutRules(LinearRules):
    """`y = op(x z / (1 - p), M)` with `z ~ Bernoulli(1 - p)` per example and input unit.

    Dropping an input equals dropping all its weights, so the marginals of y are exact. Positions of a convolution and
    tokens of a sequence share the mask of their example, as they share a draw of the weights: `nn.Dropout` for vectors,
    `nn.Dropout2d` for images.

    The rate follows from the moments, `p = var / (mean^2 + var)`, which is 0 for a layer without dropout.
    """

    name = "local"

    def apply(self, call: LinearCall, weight: Gaussian) -> Tensor:
        """Drop units of the input of one linear operation."""
        x = call.input
        with torch.no_grad():
            rates = weight.variance / (weight.loc.square() + weight.variance)
            rate = rates.nan_to_num(0.0).amax()  # 0 / 0 for weights of 0
            shape = shape_per_example(x, call.feature_axis)
            kept = torch.rand(shape, **self.options(x)) >= rate
            mask = (kept / (1 - rate)).to(x.dtype)
        return call.run(x * mask, weight.loc, loc(call.bias))


DROPOUT = DropoutRules()
