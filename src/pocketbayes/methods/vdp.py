"""VDP++: variational inference without sampling, by propagating mean and variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from pocketbayes.errors import UnknownNameError, UserError
from pocketbayes.methods.base import Run, Stage, Start, VariationalMethod
from pocketbayes.methods.meanfield import first_std
from pocketbayes.network import Net, Network, members
from pocketbayes.objective import GaussianLoss, Likelihood, check_gaussian_loss
from pocketbayes.posteriors import MeanField

PROPAGATION = {"taylor": "moments", "exact": "moments-exact"}


@dataclass(frozen=True, kw_only=True)
class VDP(VariationalMethod):
    """min loss(mean, variance of the output) + beta KL(q || prior) / N, one pass and no draw a step.

    Mean and variance of every activation go through the network ("Efficient Scaling of Bayesian Neural Networks").

    Attributes:
        loss: "gaussian-nll", the density of the one-hot label under the softmax's mean and variance, or
            "cross-entropy", which the paper took for ImageNet: the expected NLL to second order.
        activation: "taylor", to first order as in the paper, or "exact", the Gaussian moments of ReLU, leaky ReLU and
            GELU.
        std_init: The first std of every weight; a network that has stds keeps them.
        input_var: The variance of noise in the inputs.
        beta: The weight of the KL: too large and the network collapses, too small and it stops being Bayesian.
    """

    name = "vdp"
    loss: GaussianLoss = "cross-entropy"
    activation: Literal["taylor", "exact"] = "taylor"
    std_init: float | Literal["xavier"] = 0.02
    beta: float = 0.01
    input_var: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gaussian_loss(self.loss)
        if self.activation not in PROPAGATION:
            raise UnknownNameError("activation", self.activation, PROPAGATION)
        if self.input_var < 0:
            raise UserError(f"input_var must not be negative, not {self.input_var}")
        if self.train_samples != 1:
            raise UserError(f"VDP draws nothing: train_samples must be 1, not {self.train_samples}")

    def init(self, model: nn.Module) -> Network:
        """Means at the model's weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        std = start.std if start.std is not None else first_std(start.layout, start.mean, self.std_init)
        return Network(
            start.model,
            MeanField(start.layout, start.mean, std),
            prior=self.make_prior(start.mean),
            likelihood=start.likelihood,
            propagation=PROPAGATION[self.activation],
            input_var=self.input_var,
        )

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """One stage, its likelihood told which loss a Gaussian output has."""
        return (Stage("train", begin=self._set_loss),)

    def _set_loss(self, net: Net, run: Run) -> Net:
        for network in members(net):
            assert isinstance(network.likelihood, Likelihood)
            network.likelihood.gaussian_loss = self.loss
        return net
