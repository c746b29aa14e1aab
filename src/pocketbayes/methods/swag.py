"""SWAG: a Gaussian fitted to the weights that SGD visits at a constant learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Stage, TrainingContext
from pocketbayes.methods.deterministic import Deterministic
from pocketbayes.methods.recalibration import replace_statistics
from pocketbayes.network import Net, Network
from pocketbayes.posteriors.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class SWAG(Deterministic):
    """SWAG: a Gaussian fitted to the weights that SGD visits after training (Maddox et al. 2019).

    `w ~ N(average, (diag(var) + D D^T / (K - 1)) / 2)` over the collected weights.

    Normal training, unless `fit` is given a trained Network, is followed by `swag_epochs` at a constant rate, and
    weights are collected after each. Departures: the optimiser is the run's, in the paper SGD; point parameters
    (biases, normalisation) are averaged and have no variance; batch norm is recalibrated once at the average weights,
    in the paper for every draw.

    Attributes:
        swag_epochs: The number of epochs of collection, and of collected weights.
        swag_lr: Its learning rate; None for the run's `lr`.
        rank: K, the number of stored deviations.
        scale: A factor on the covariance.
    """

    name = "swag"
    learns = "weights; then a covariance from their path"
    swag_epochs: int = 20
    swag_lr: float | None = None
    rank: int = 20
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.swag_epochs < 2 or self.rank < 2:
            raise UserError(
                f"a covariance needs swag_epochs and rank of at least 2, not {self.swag_epochs}, {self.rank}"
            )
        if not self.scale > 0:
            raise UserError(f"scale must be positive, not {self.scale}")

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return training, if still needed, then the collection."""
        fixed = {"schedule": "constant", "warmup_epochs": 0.0, "keep_best": False}
        if self.swag_lr is not None:
            fixed["lr"] = self.swag_lr
        collect = Stage(
            "collect", epochs=self.swag_epochs, fixed=fixed, begin=self._begin, end=self._end, after_epoch=_collect
        )
        return (collect,) if isinstance(model, Network) else (Stage("train"), collect)

    def _begin(self, net: Net, run: TrainingContext) -> Network:
        assert isinstance(net, Network)
        mean = net.posterior.moments()[0]
        trajectory = Trajectory(net.layout, mean, self.rank, _flat_points(net.model, mean).numel())
        return Network(net.model, trajectory, likelihood=net.likelihood, propagation="mean")

    def _end(self, net: Net, run: TrainingContext) -> Network:
        assert isinstance(net, Network)
        assert isinstance(net.posterior, Trajectory)
        _set_points(net.model, net.posterior.points)
        swag = Network(net.model, net.posterior.gaussian(self.scale), likelihood=net.likelihood)
        replace_statistics(swag, run.batches(shuffle=True))
        return swag


def _collect(net: Network, epoch: int) -> None:
    assert isinstance(net.posterior, Trajectory)
    net.posterior.collect(_flat_points(net.model, net.posterior.mean))


def _flat_points(model: nn.Module, like: Tensor) -> Tensor:
    """Return the parameters outside the posterior as a vector."""
    return torch.cat([like.new_zeros(0), *(parameter.detach().flatten() for parameter in model.parameters())])


@torch.no_grad()
def _set_points(model: nn.Module, flat: Tensor) -> None:
    parameters = list(model.parameters())
    for parameter, values in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.copy_(values.view_as(parameter))
