"""Local reparameterisation (Kingma et al. 2015): draw the pre-activations, not the weights."""

from __future__ import annotations

from torch import Tensor

from pocketbayes.gaussian import Gaussian, noise_like, safe_sqrt
from pocketbayes.rules.linear_ops import LinearCall, LinearRules, loc


class Local(LinearRules):
    """y = op(x, M) + sqrt(op(x^2, V)) eps, one noise per example and output.

    Positions and tokens get independent noise although they share weights: in a convolution the marginals of y are exact,
    their correlations are not.
    """

    name = "local"

    def apply(self, call: LinearCall) -> Tensor:
        """Draws the outputs of one linear operation."""
        weight, bias = call.weight, call.bias
        assert isinstance(weight, Gaussian)
        mean = call.run(call.input, weight.loc, loc(bias))
        var = call.run(call.input.square(), weight.variance, bias.variance if isinstance(bias, Gaussian) else None)
        return mean + safe_sqrt(var) * noise_like(mean)


LOCAL = Local()
