"""Mean-field variational inference: Bayes by Backprop, local reparameterisation, flipout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Stage, Start, TrainingContext, VariationalMethod
from pocketbayes.methods.curvature import curvature_stds, diagonal_curvature, set_stds
from pocketbayes.network import Net, Network
from pocketbayes.posteriors import MeanField
from pocketbayes.posteriors.layout import Layout
from pocketbayes.propagation import find_propagation

StdInit = float | Literal["relative", "curvature", "xavier"]
CURVATURE_BATCHES = 8
"""Number of training batches for stds from curvature."""
LOCAL_SCALE, BATCH_SCALE, CONVOLUTION_SCALE = 1.0, 0.6, 0.3
"""The initial std in units of a layer's weights: with noise per example, with one noise per batch, and in convolutions,
whose weights act at many positions and so are known better."""


@dataclass(frozen=True, kw_only=True)
class MeanFieldMethod(VariationalMethod):
    """A method that trains a mean and a std for every weight.

    Attributes:
        propagation: "sample" (Bayes by Backprop, Blundell et al. 2015), "local" (Kingma et al. 2015) or "flipout"
            (Wen et al. 2018).
        std_init: The initial stds: "relative", `std_scale` times the root mean square of each layer's weights; a
            number; "curvature", `1 / sqrt(N h + d)` with h the diagonal Fisher information on some batches and `d^-1/2`
            as "relative"; or "xavier", |u| with u uniform in +-0.01 / sqrt(n_in + n_out), as in 2DGBNN. A network with
            stds keeps them.
        std_scale: See `std_init`; None for 1 with local noise, else 0.6; and for 0.3 in convolutions.
        antithetic: None for True with weight samples, whose noise would otherwise drown the gradient, and an even
            number of passes.
    """

    propagation: Literal["sample", "local", "flipout"] = "sample"
    std_init: StdInit = "relative"
    std_scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        find_propagation(self.propagation)
        if self.antithetic is None:
            pairs = self.train_samples == 1 or self.train_samples % 2 == 0
            object.__setattr__(self, "antithetic", self.propagation == "sample" and pairs)
        if self.antithetic and self.propagation != "sample":
            raise UserError(f"antithetic noise needs propagation='sample', not {self.propagation!r}")
        check_std_init(self.std_init)

    def init(self, model: nn.Module) -> Network:
        """Return a network with means at the model's weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        std = start.std
        if std is None:
            usual = LOCAL_SCALE if self.propagation == "local" else BATCH_SCALE
            scales = (usual, CONVOLUTION_SCALE) if self.std_scale is None else (self.std_scale, self.std_scale)
            std = first_std(start.layout, start.mean, self.std_init, *scales)
        return self.network(start, MeanField(start.layout, start.mean, std), propagation=self.propagation)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return one stage; stds from curvature are measured at its beginning."""
        return (Stage("train", begin=stds_at_begin(self.std_init, model)),)


@dataclass(frozen=True, kw_only=True)
class MeanFieldVI(MeanFieldMethod):
    """Mean-field variational inference: a mean and a std for every weight.

    It minimises `NLL + beta KL(q || prior) / N` with `q = prod N(mean_i, std_i^2)`. Its settings are those of
    `MeanFieldMethod`.
    """

    @property
    def name(self) -> str:  # type: ignore[override]
        """The registry name."""
        return {"local": "lrt", "flipout": "flipout"}.get(self.propagation, "bbb")


def stds_at_begin(init: StdInit, model: nn.Module) -> Callable[[Net, TrainingContext], Net] | None:
    """Return the function that sets stds from curvature at the start of a stage, if requested and needed."""
    known = isinstance(model, Network) and model.has_stds
    return None if init != "curvature" or known else begin_with_curvature


def begin_with_curvature(net: Net, run: TrainingContext) -> Net:
    """Replace stds s by `1 / sqrt(N h + 1 / s^2)`."""
    assert isinstance(net, Network)
    curvature, _ = diagonal_curvature(net, itertools.islice(run.batches(shuffle=True), CURVATURE_BATCHES))
    with torch.no_grad():
        precision = net.posterior.moments()[1].square().reciprocal()
    set_stds(net.posterior, curvature_stds(curvature, run.examples, precision))
    return net


def check_std_init(init: object) -> None:
    """Reject an invalid `std_init`."""
    if init not in ("relative", "curvature", "xavier") and not (isinstance(init, (int, float)) and 0 < init < math.inf):
        raise UserError(f"std_init must be a finite positive number, 'relative', 'curvature' or 'xavier', not {init!r}")


def first_std(layout: Layout, mean: Tensor, init: StdInit, relative: float, convolution: float | None = None) -> Tensor:
    """Return the initial stds, (n,).

    Args:
        layout: The layout of the weights.
        mean: The initial means, (n,).
        init: One number for all; "relative", `relative` times the root mean square of each layer's weights, also the
            start of "curvature" before there are data; or "xavier", |u| with u uniform in +-0.01 / sqrt(n_in + n_out).
        relative: See `init`.
        convolution: The same for convolutions; None for `relative`.
    """
    if isinstance(init, (int, float)):
        return torch.full_like(mean, float(init))
    parts = []
    for slot in layout.slots:
        receptive = torch.Size(slot.shape[2:]).numel()
        fan_in = slot.shape[1] if len(slot.shape) > 1 else 0
        if init != "xavier":
            scale = float(mean[slot.start : slot.stop].square().mean().sqrt())
            usual = (max(fan_in, 1) * receptive) ** -0.5  # for layers that start at 0
            share = convolution if convolution is not None and len(slot.shape) > 2 else relative
            parts.append(mean.new_full((slot.size,), share * (scale or usual)))
        else:
            fans = (slot.shape[0] + fan_in) * receptive
            parts.append(torch.rand(slot.size, dtype=mean.dtype, device=mean.device) * (0.01 / fans**0.5))
    return torch.cat(parts).clamp(min=1e-8)
