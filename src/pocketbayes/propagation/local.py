"""Local reparameterisation (Kingma et al. 2015), drawing pre-activations; for dropout weights, dropout of inputs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import Gaussian, RuleTable, mean_of, safe_sqrt
from pocketbayes.propagation.base import Ruled
from pocketbayes.propagation.linear_ops import LinearCall, LinearRules, shape_per_example


class LocalRules(LinearRules):
    """`y = op(x, M) + sqrt(op(x^2, V)) eps` with independent noise per example and output.

    Positions and tokens get independent noise although they share weights, so in a convolution the marginals of y are
    exact but their correlations are not.
    """

    name = "local"
    takes_matrices = True

    def apply(self, call: LinearCall, weight: Gaussian) -> Tensor:
        """Draw the outputs of one linear operation."""
        x, bias = call.input, call.bias
        mean = call.run(x, weight.loc, mean_of(bias))
        bias_var = bias.variance if isinstance(bias, Gaussian) else None
        if _half_precision(x.device.type):  # small variances would underflow, squared inputs overflow
            with torch.autocast(x.device.type, enabled=False):
                var = call.run(x.float().square(), weight.variance, bias_var)
        else:
            var = call.run(x.square(), weight.variance, bias_var)
        return mean + safe_sqrt(var).to(mean.dtype) * self.normal(mean)


def _half_precision(device: str) -> bool:
    if not torch.amp.is_autocast_available(device):  # as on the meta device
        return False
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16


LOCAL = LocalRules()


class DropoutRules(LinearRules):
    """`y = op(x z / (1 - p), M)` with `z ~ Bernoulli(1 - p)` per example and input unit (Srivastava et al. 2014).

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
        return call.run(x * mask, weight.loc, mean_of(call.bias))


DROPOUT = DropoutRules()


class Local(Ruled):
    """Noise on the outputs of linear operations per example; dropout weights drop inputs instead."""

    name = "local"
    draws = True
    predicts_by = "sample"  # local noise is cheap in training but ignores correlations
    table: ClassVar[RuleTable] = LOCAL

    def rules(self, posterior: Posterior) -> RuleTable:
        """Return the table for the weights of a posterior."""
        return DROPOUT if posterior.drops_units else self.table
