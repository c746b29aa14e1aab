"""Partial Bayesian networks: only the weights to which the loss is most sensitive are random."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Annealing, Stage, Start, TrainingContext, VariationalMethod
from pocketbayes.methods.curvature import diagonal_curvature
from pocketbayes.methods.deterministic import Deterministic, deterministic_start
from pocketbayes.methods.sensitivity import largest, largest_per_slot, sensitivities
from pocketbayes.network import Net, Network
from pocketbayes.posteriors import Partial
from pocketbayes.posteriors.layout import Layout

Choice = Literal["gradient", "squared", "output", "curvature", "random", "first-layer", "last-layer"]


@dataclass(frozen=True, kw_only=True)
class PBN(VariationalMethod):
    """A partial Bayesian network: only the weights to which the output is most sensitive are random.

    `var(y) ~ sum_i (df/dw_i)^2 std_i^2` (Eq. 6), so the r n weights with the largest |gradient| get a std.

    A deterministic network is trained first, unless `fit` is given a trained Network or `pretrain_epochs=0`. Then all
    means and the chosen stds are trained.

    Attributes:
        rate: r, the fraction of random weights, from 0 (the deterministic network) to 1 (mean-field VI).
        sensitivity: The score for choosing weights: one of `methods.sensitivity`; "curvature", the diagonal of the
            Fisher information with labels drawn from the network's predictions; or, as controls, "random",
            "first-layer" or "last-layer".
        scope: Whether the largest scores are taken over the whole "network" or within each "layer".
        sensitivity_batches: Number of training batches for the score; None for all.
        pretrain_epochs: Epochs of the deterministic network. None for as many as the second stage (`epochs=`), so that
            the run takes twice as long; 0 uses the given model directly.
        rho_mean: Mean of the initial rho; std = softplus(rho).
        rho_std: Std of the initial rho.
        kl_scale: Factor on beta; the paper writes beta KL without 1/N, which is `kl_scale=N`.
    """

    name = "pbn"
    rate: float = 0.05
    sensitivity: Choice = "gradient"
    scope: Literal["network", "layer"] = "network"
    sensitivity_batches: int | None = None
    pretrain_epochs: int | None = None
    rho_mean: float = -4.0
    rho_std: float = 0.1
    kl_scale: float = 1.0
    train_samples: int = 5
    beta: float = 0.01
    beta_start: float | None = 0.2
    annealing: Annealing = "linear-down"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rate <= 1:
            raise UserError(f"rate must lie between 0 and 1, not {self.rate}")
        check_choice("sensitivity", self.sensitivity, get_args(Choice))
        check_choice("scope", self.scope, ("network", "layer"))

    def init(self, model: nn.Module) -> Network:
        """Build the partial network with weights chosen at random: sensitivities need data, which only stages have."""
        start = Start.of(model, self.bayesian_bias, self.select)
        return self._partial(start, self._choose(torch.rand_like(start.mean), start.layout))

    def start(self, model: nn.Module) -> Network:
        """Return the deterministic network."""
        return deterministic_start(self, model)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return deterministic training, if still needed, then training of the partial network."""
        partial = Stage("partial", begin=self._begin_partial)
        if isinstance(model, Network) or self.pretrain_epochs == 0:
            return (partial,)
        return (Stage("deterministic", epochs=self.pretrain_epochs, method=Deterministic()), partial)

    def at_most_sensitive(self, model: nn.Module, score: Tensor) -> Network:
        """Build the partial network whose random weights have the largest scores."""
        start = Start.of(model, self.bayesian_bias, self.select)
        return self._partial(start, self._choose(score, start.layout))

    def kl_weight(self, progress: float) -> float:
        """Return beta, from 0.2 down to 0.01 over the epochs (the printed formula runs backwards)."""
        return super().kl_weight(progress) * self.kl_scale

    def _begin_partial(self, net: Net, run: TrainingContext) -> Network:
        start = Start.of(net)
        if self.sensitivity == "random" or self.sensitivity == "first-layer" or self.sensitivity == "last-layer":
            score = torch.rand_like(start.mean)
        else:
            assert isinstance(net, Network)
            data = itertools.islice(run.batches(), self.sensitivity_batches)
            if self.sensitivity == "curvature":
                score = diagonal_curvature(net, data)[0]
            else:
                score = sensitivities(net, data, self.sensitivity, team=run.team)
        network = self._partial(start, self._choose(score, start.layout))
        assert isinstance(network.posterior, Partial)
        run.note(random_weights=network.posterior.noise_size, weights=start.layout.size)
        return network

    def _choose(self, score: Tensor, layout: Layout) -> Tensor:
        if self.sensitivity in ("first-layer", "last-layer"):
            slot = layout.slots[0 if self.sensitivity == "first-layer" else -1]
            count = min(round(self.rate * layout.size), slot.size)
            return slot.start + largest(score[slot.start : slot.stop], count)
        if self.scope == "layer":
            return largest_per_slot(score, layout, self.rate)
        return largest(score, round(self.rate * layout.size))

    def _partial(self, start: Start, index: Tensor) -> Network:
        noise = torch.randn(len(index), dtype=start.mean.dtype, device=start.mean.device)
        std = F.softplus(self.rho_mean + self.rho_std * noise)
        return self.network(start, Partial(start.layout, start.mean, index, std))
