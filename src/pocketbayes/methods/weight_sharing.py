"""2DGBNN: weights share Gaussians, so that a weight is the number of its Gaussian (arXiv 2505.17856)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes import plane
from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.base.process_group import ALONE, ProcessGroup
from pocketbayes.methods.base import Stage, Start, TrainingContext, VariationalMethod
from pocketbayes.methods.deterministic import Deterministic, deterministic_start
from pocketbayes.methods.meanfield import MeanFieldVI, StdInit, first_std
from pocketbayes.methods.sensitivity import sensitivities
from pocketbayes.network import Net, Network
from pocketbayes.plane import Plane, PlaneOptions, PlaneSettings
from pocketbayes.posteriors import Shared
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Empirical, Prior
from pocketbayes.posteriors.shared import Blend, Draw

SMALLEST_STD = 1e-8
RELATIVE_STD = 0.2
"""The initial std of the mean-field network in units of each layer's weights."""
MEANFIELD_STD_RATE, SHARED_STD_RATE = 1e-3, 1e-4
"""The default learning rates of the stds, small because these stages are short and the prior is wide."""
EM_STEPS, EM_GAUSSIANS = 30, 1000
"""The default number of EM steps, and of Gaussians below which there are none."""


@dataclass(frozen=True, kw_only=True)
class WeightSharing(PlaneOptions, VariationalMethod):
    """Weights that share a few Gaussians (2DGBNN).

    Each weight's (mean, std) is a point in a plane, K << n Gaussians cover the cloud, and a weight stores the number of
    its Gaussian.

    Stages: a deterministic network (skipped if `fit` is given a trained Network, or with `pretrain_epochs=0`); a
    mean-field network around it (skipped if the Network has stds, or with `meanfield_epochs=0`, when the stds keep
    their initial values); the plane, and training of the shared network. `PlaneOptions` documents the choices of the
    plane.

    Attributes:
        scope: One plane for the whole "network", or one per "layer".
        draw: "shared", "shared-noise" or "independent"; see `Shared`.
        blend: "convex" or, for evaluation, "mixture".
        iterations: EM steps after K-means; None for 30, and 0 with fewer than 1000 Gaussians, where EM makes some so
            wide that they blur the means. The paper uses EM.
        std_init: The initial stds of the mean-field network, as in `MeanFieldVI`, but "relative" is 0.2 of each layer's
            weights; "xavier" in the paper.
        pretrain_epochs: Epochs of the deterministic network; None for the run's.
        meanfield_epochs: Epochs of the mean-field network.
        gradient_batches: Number of training batches for averaging gradients; None for all.
        refresh_epochs: Epochs between reassignments of weights to Gaussians; None for never.
    """

    name = "2dgbnn"
    scope: Literal["network", "layer"] = "network"
    draw: Draw = "shared"
    blend: Blend = "convex"
    iterations: int | None = None  # type: ignore[assignment]
    std_init: StdInit = "relative"
    pretrain_epochs: int | None = None
    meanfield_epochs: int = 1
    gradient_batches: int | None = None
    refresh_epochs: int | None = None
    prior: str = "pretrained"
    prior_std: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings(0, torch.zeros(0))
        self._mean_field()
        if self.refresh_epochs is not None and (self.refresh_epochs < 1 or self.scope == "layer"):
            raise UserError(
                f"refresh_epochs must be at least 1, with Gaussians of the full network, not {self.refresh_epochs} "
                f"with scope={self.scope!r}"
            )
        check_choice("scope", self.scope, ("network", "layer"))

    def init(self, model: nn.Module) -> Network:
        """Return the shared network of the given model, without gradient outliers, which need data."""
        return self._share(Start.of(self._mean_field().init(model)), None, seed=0)[0]

    def start(self, model: nn.Module) -> Network:
        """Return a network with the given weights, from which the first stage continues."""
        return deterministic_start(self, model)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return the deterministic, mean-field and shared stages that are still needed."""
        stages = []
        if not isinstance(model, Network) and self.pretrain_epochs != 0:
            stages.append(Stage("deterministic", epochs=self.pretrain_epochs, method=Deterministic()))
        has_stds = isinstance(model, Network) and model.has_stds
        if not has_stds and self.meanfield_epochs:
            field = self._mean_field()
            stages.append(
                Stage(
                    "mean-field",
                    epochs=self.meanfield_epochs,
                    settings={"std_lr": MEANFIELD_STD_RATE},
                    method=field,
                    begin=lambda net, run: field.init(net),
                )
            )
        stages.append(
            Stage(
                "shared",
                settings={"std_lr": SHARED_STD_RATE},
                begin=self._begin_shared,
                end=_drop_points,
                after_epoch=self._refresh,
            )
        )
        return stages

    def _refresh(self, net: Network, epoch: int) -> None:
        """Reassign weights to the Gaussian under which their original mean and std are most probable."""
        posterior = net.posterior
        assert isinstance(posterior, Shared)
        due = self.refresh_epochs is not None and (epoch + 1) % self.refresh_epochs == 0
        if due and posterior.points is not None:
            refresh(posterior, self.neighbours, self.keep)

    def _mean_field(self) -> MeanFieldVI:
        shared = {field.name: getattr(self, field.name) for field in fields(VariationalMethod)}
        return MeanFieldVI(std_init=self.std_init, std_scale=RELATIVE_STD, **shared)

    def _settings(self, seed: int, mean: Tensor) -> PlaneSettings:
        """Return the settings of the plane over weights with these means."""
        options = {field.name: getattr(self, field.name) for field in fields(PlaneOptions)}
        settings = PlaneSettings(seed=seed, **{**options, "iterations": self.iterations or 0})
        k = settings.for_cloud(mean).k if self.bits_per_weight is None else 2**self.bits_per_weight
        few = not isinstance(k, str) and k < EM_GAUSSIANS
        return settings if few or self.iterations is not None else replace(settings, iterations=EM_STEPS)

    def _begin_shared(self, net: Net, run: TrainingContext) -> Network:
        assert isinstance(net, Network)
        start = Start.of(net)
        gradient = None
        if self.gradient_fraction > 0 or self.merge is not None:
            gradient = sensitivities(net, itertools.islice(run.batches(), self.gradient_batches), team=run.team)
        # An empirical prior is per layer, but Gaussians are shared between layers.
        kept = net.prior if net.prior.complete and not isinstance(net.prior, Empirical) else None
        network, planes = self._share(start, gradient, run.seed, kept, run.team)
        posterior = network.posterior
        assert isinstance(posterior, Shared)
        run.note(
            outliers_by_value=sum(len(p.value_outliers) for p in planes),
            outliers_by_gradient=sum(len(p.gradient_outliers) for p in planes),
            outliers_by_small_cluster=sum(len(p.small_outliers) for p in planes),
            gaussians_before_merging=sum(p.k_before_merging for p in planes),
            gaussians=posterior.gaussians,
            ellipse_points=posterior.blends,
            index_bits=round(posterior.index_bits(), 4),
        )
        return network

    def _share(
        self, start: Start, gradient: Tensor | None, seed: int, prior: Prior | None = None, team: ProcessGroup = ALONE
    ) -> tuple[Network, list[Plane]]:
        std = start.std
        if std is None:
            std = first_std(start.layout, start.mean, self.std_init, RELATIVE_STD)
        whole = [slice(0, start.layout.size)]
        parts = whole if self.scope == "network" else [slice(slot.start, slot.stop) for slot in start.layout.slots]
        planes = []
        for part in parts:
            settings = self._settings(seed, start.mean[part])
            own = None if gradient is None else gradient[part]
            planes.append(plane.survey(start.mean[part], std[part], own, settings, team))
        posterior = shared_posterior(
            start.layout, start.mean, std, planes, self.draw, self.blend, keep_points=self.refresh_epochs is not None
        )
        return start.network(posterior, prior=prior or self.make_prior(start.mean, start.layout)), planes


def shared_posterior(
    layout: Layout,
    mean: Tensor,
    std: Tensor,
    planes: Sequence[Plane],
    draw: Draw = "shared",
    blend: Blend = "convex",
    *,
    keep_points: bool = False,
) -> Shared:
    """Build the posterior from one plane over all weights, or one per consecutive part."""
    gaussians = [len(p.mixture) for p in planes]
    first = [0, *itertools.accumulate(gaussians)]
    index = torch.cat([torch.where(p.index >= 0, p.index + k, -1) for p, k in zip(planes, first)])
    starts = [0, *itertools.accumulate(len(p.index) for p in planes)]
    ellipses = torch.cat([p.ellipses + s for p, s in zip(planes, starts)])
    width = max(p.blend_index.shape[1] for p in planes)
    outliers = (index < 0).nonzero().flatten()
    index[outliers] = first[-1] + torch.arange(len(outliers), device=index.device)
    index[ellipses] = first[-1] + len(outliers) + torch.arange(len(ellipses), device=index.device)
    centres = torch.cat([p.mixture.means for p in planes])
    factors = torch.linalg.cholesky(torch.cat([p.mixture.covs for p in planes]))
    return Shared(
        layout,
        centres=centres.to(mean.dtype),
        factors=torch.stack([factors[:, 0, 0], factors[:, 1, 0], factors[:, 1, 1]], 1).to(mean.dtype),
        index=index,
        outlier_mean=mean[outliers],
        outlier_std=std[outliers].clamp(min=SMALLEST_STD),
        blend_index=torch.cat([_widen(p.blend_index, width) + k for p, k in zip(planes, first)]),
        blend_alpha=torch.cat([_widen(p.blend_alpha, width) for p in planes]).to(mean.dtype),
        points=torch.stack([mean, std], 1) if keep_points else None,
        draw=draw,
        blend=blend,
    )


@torch.no_grad()
def refresh(posterior: Shared, neighbours: int, keep: int | None = None) -> None:
    """Reassign weights and blends under the current Gaussians (see `plane.blend`)."""
    assert posterior.points is not None
    weights = posterior.counts.double() / posterior.counts.sum()
    centres = torch.stack([posterior.centre_mean, posterior.centre_std], 1).double()
    mixture = plane.PlaneMixture(centres, posterior.covariances(), weights.clamp(min=1e-12))
    points = posterior.points.double()
    inside = (posterior.index < posterior.gaussians).nonzero().flatten()
    index = posterior.index.index_copy(0, inside, mixture.assign(points[inside]).to(posterior.index.dtype))
    blended = (posterior.index >= posterior.gaussians + posterior.outliers).nonzero().flatten()
    own = points[blended[posterior.index[blended].argsort()]]
    width = posterior.blend_index.shape[1]
    posterior.reassign(index, *(_widen(rows, width) for rows in plane.blend(own, mixture, neighbours, keep)))


def _drop_points(net: Net, run: TrainingContext) -> Net:
    assert isinstance(net, Network)
    assert isinstance(net.posterior, Shared)
    net.posterior.points = None
    return net


def _widen(rows: Tensor, width: int) -> Tensor:
    """Pad rows to a common width with Gaussian 0 of their plane and share 0."""
    return F.pad(rows, (0, width - rows.shape[1]))
