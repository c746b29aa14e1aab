"""VDP++: variational inference without sampling, by propagating mean and variance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.likelihoods import GaussianLoss
from pocketbayes.methods.base import Stage, Start, TrainingContext, VariationalMethod
from pocketbayes.methods.meanfield import StdInit, check_std_init, first_std, stds_at_begin
from pocketbayes.network import Net, Network, members
from pocketbayes.posteriors import MeanField, RowStds
from pocketbayes.propagation import MOMENTS_FULL

STORAGES = {"weight": MeanField, "row": RowStds}
PROPAGATION = {"taylor": "moments", "exact": "moments-exact"}


@dataclass(frozen=True, kw_only=True)
class DensityPropagation(VariationalMethod):
    """Training on the moments of the output, `loss(moments) + beta KL(q || prior) / N`, with one pass per step.

    Attributes:
        loss: "gaussian-nll", the density of the one-hot label under the moments of the softmax, or "cross-entropy", the
            expected NLL to second order, which the paper used for ImageNet.
        variance: "weight", one per weight, or "row", one per row of a weight (output of a layer), as in the paper's Eq.
            12; then every row starts from the mean of its stds.
        std_init: The initial stds, as in `MeanFieldVI`; a network with stds keeps them.
        std_scale: See `std_init`.
        input_var: The variance of noise in the inputs.
        beta: The weight of the KL: if it is too large the network collapses, if too small it is no longer Bayesian.
    """

    loss: GaussianLoss = "cross-entropy"
    variance: Literal["weight", "row"] = "weight"
    std_init: StdInit = "relative"
    std_scale: float = 0.6
    input_var: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, get_args(GaussianLoss))
        check_std_init(self.std_init)
        check_choice("variance", self.variance, STORAGES)
        if self.input_var < 0:
            raise UserError(f"input_var must not be negative, not {self.input_var}")
        if self.train_samples != 1:
            raise UserError(f"{self.name} does not sample: train_samples must be 1, not {self.train_samples}")

    @property
    @abstractmethod
    def propagation(self) -> str:
        """The propagation of moments."""

    def init(self, model: nn.Module) -> Network:
        """Return a network with means at the model's weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        std = start.std if start.std is not None else first_std(start.layout, start.mean, self.std_init, self.std_scale)
        posterior = STORAGES[self.variance](start.layout, start.mean, std)
        return self.network(start, posterior, propagation=self.propagation, input_var=self.input_var)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return one stage that sets the likelihood's loss for Gaussian outputs."""
        measure = stds_at_begin(self.std_init, model)

        def begin(net: Net, run: TrainingContext) -> Net:
            return self._set_loss(net if measure is None else measure(net, run))

        return (Stage("train", begin=begin),)

    def _set_loss(self, net: Net) -> Net:
        for network in members(net):
            assert network.likelihood is not None
            network.likelihood.gaussian_loss = self.loss
        return net


@dataclass(frozen=True, kw_only=True)
class VDP(DensityPropagation):
    """VDP++: mean and variance are propagated through the network ("Efficient Scaling of Bayesian Neural Networks").

    Attributes:
        activation: "taylor", to first order as in the paper, or "exact", the Gaussian moments of ReLU, leaky ReLU and
            GELU.
        covariance: "diagonal", or "full" for small networks, as in `FullCovarianceVDP`.
    """

    name = "vdp"
    activation: Literal["taylor", "exact"] = "taylor"
    covariance: Literal["diagonal", "full"] = "diagonal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("activation", self.activation, PROPAGATION)
        check_choice("covariance", self.covariance, ("diagonal", "full"))
        if self.covariance == "full" and self.activation != "taylor":
            raise UserError("covariance='full' has activation='taylor' only: exact moments need diagonal covariance")

    @property
    def propagation(self) -> str:
        """The propagation for the activation and covariance."""
        return MOMENTS_FULL.name if self.covariance == "full" else PROPAGATION[self.activation]


@dataclass(frozen=True, kw_only=True)
class FullCovarianceVDP(DensityPropagation):
    """VDP: mean and full covariance are propagated through the network, d^2 numbers for d activations.

    A baseline for small chains of linear layers, convolutions, activations, batch norm and pooling: already LeNet-5
    takes hundreds of times the time and memory of `VDP` (docs/methods/vdp.md). Other operations, and covariances beyond
    a gigabyte, raise an error that names them.
    """

    name = "vdp-full"

    @property
    def propagation(self) -> str:
        """The full-covariance propagation."""
        return MOMENTS_FULL.name
