"""Stage 2 of 2DGBNN: from a mean and a std per weight to the number of a Gaussian per weight, outliers and blends.

The steps, most of which are optional: find outliers, fit the mixture, assign weights, dissolve small clusters, merge
close Gaussians, blend ellipse points. Merging comes before the ellipse points (in the paper after), so that these are
found with, and blended from, the final Gaussians.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.base.process_group import ALONE, ProcessGroup
from pocketbayes.plane.chunks import fixed_order, slices
from pocketbayes.plane.codes import entropy_bits
from pocketbayes.plane.ellipses import MODES, EllipseMode, blend, ellipse_points
from pocketbayes.plane.gaussians import MERGE_RULES, MergeRule
from pocketbayes.plane.histogram import make_grid, make_histogram
from pocketbayes.plane.merging import READINGS, Reading, dissolve, merge_all
from pocketbayes.plane.mixture import PlaneMixture, default_bins, fit_by_bic, fit_by_bits, fit_mixture

CHUNK = 1 << 20
# Number of Gaussians that the histogram is made for when BIC chooses it.
BIC_CELLS_FOR = 2048
# The relative defaults; see `PlaneSettings.for_cloud`.
MOST_GAUSSIANS = 2000
VALUE_OUTLIER_RMS = 4.0
SMALLEST_CLUSTER, LARGEST_N_MIN = 3, 30


@dataclass(frozen=True, kw_only=True)
class PlaneOptions:
    """The choices of stage 2.

    Attributes:
        k: The number of Gaussians (2000 in the paper's text, 6000 in its table); "auto" for the square root of the
            number of weights, at most 2000; "bic" for the Bayesian information criterion.
        bits_per_weight: Instead of `k`, as many Gaussians as this index entropy allows, before merging.
        iterations: EM steps after K-means. 0 keeps K-means, which represents means better with few Gaussians, where EM
            spends one on weights with unusual stds.
        tau_w: Weights with a larger |mean| are outliers (0.2 in the paper); "auto" for 4 times the means' root mean
            square; None for none.
        gradient_fraction: The fraction of weights with the largest gradients, which are also outliers; 0 for none.
        n_min: Smaller clusters are dissolved into outliers (30 in the paper's text, 20 in its table); 0 for none;
            "auto" for a tenth of the mean cluster, from 3 to 30.
        ellipse: "nearest" for weights outside the ellipses of all Gaussians, "own" for those outside the ellipse of
            their own, None for no blending.
        neighbours: Number of Gaussians that an ellipse point is blended from.
        keep: Number of these to keep, the best by density (2 in the authors' code); None for all.
        merge: "moments", "barycenter" or "paper", the rule for merging two Gaussians; None for no merging.
        tau_d: Largest squared W2 distance of Gaussians to merge; None for relative to the cloud's scale.
        tau_g: Largest mean gradient of Gaussians to merge; None for twice the mean over all weights.
        tau_v: Largest variance of Gaussians to merge; None for relative to the cloud.
        reading: Whether tau_g and tau_v bound "value"s or "difference"s.
    """

    k: int | Literal["bic", "auto"] = "auto"
    bits_per_weight: float | None = None
    iterations: int = 30
    tau_w: float | Literal["auto"] | None = "auto"
    gradient_fraction: float = 0.01
    n_min: int | Literal["auto"] = "auto"
    ellipse: EllipseMode | None = "nearest"
    neighbours: int = 5
    keep: int | None = None
    merge: MergeRule | None = "moments"
    tau_d: float | None = None
    tau_g: float | None = None
    tau_v: float | None = None
    reading: Reading = "value"


@dataclass(frozen=True, kw_only=True)
class PlaneSettings(PlaneOptions):
    """All settings of stage 2; `PlaneSettings.for_cloud` replaces "auto".

    Attributes:
        chi2: squared Mahalanobis distance of the ellipse; 5.991 holds 95 % of a Gaussian in the plane.
        seed: of all draws.
        bins: cells of the histogram; see `fit_mixture`.
    """

    chi2: float = 5.991
    seed: int = 0
    bins: int | None = None

    def __post_init__(self) -> None:
        if not (self.k in ("bic", "auto") or (isinstance(self.k, int) and self.k >= 1)):
            raise UserError(f"k={self.k!r}: give a number of Gaussians of at least 1, 'bic' or 'auto'")
        for setting in ("tau_w", "n_min"):
            if isinstance(value := getattr(self, setting), str) and value != "auto":
                raise UserError(f"{setting}={value!r}: give a number or 'auto'")
        if self.bits_per_weight is not None and not 0 < self.bits_per_weight <= 32:
            raise UserError(f"bits_per_weight={self.bits_per_weight}: must be above 0 and at most 32")
        if not 0 <= self.gradient_fraction < 1:
            raise UserError(f"gradient_fraction={self.gradient_fraction}: must be at least 0 and below 1")
        for kind, name, known in (
            ("ellipse mode", self.ellipse, MODES),
            ("merge rule", self.merge, MERGE_RULES),
            ("reading of the merge thresholds", self.reading, READINGS),
        ):
            if name is not None and name not in known:
                raise UnknownNameError(kind, name, known)

    def for_cloud(self, mean: Tensor) -> PlaneSettings:
        """Replace every "auto" by a number that fits these weights.

        k is the square root of the number of weights, at most 2000; tau_w is 4 times the root mean square of the means;
        n_min is a tenth of the mean cluster, at least 3 (a Gaussian stores five values, an outlier two) and at most 30.
        """
        size = max(len(mean), 1)
        k = min(round(math.sqrt(size)), MOST_GAUSSIANS) if self.k == "auto" else self.k
        tau_w = VALUE_OUTLIER_RMS * float(mean.double().square().mean().sqrt()) if self.tau_w == "auto" else self.tau_w
        clusters = 2**self.bits_per_weight if self.bits_per_weight is not None else k
        if self.n_min != "auto":
            n_min = self.n_min
        elif clusters == "bic":
            n_min = SMALLEST_CLUSTER
        else:
            n_min = min(max(round(0.1 * size / clusters), SMALLEST_CLUSTER), LARGEST_N_MIN)
        return replace(self, k=k, tau_w=tau_w, n_min=n_min)


@dataclass(frozen=True)
class Plane:
    """The result of stage 2. Positions refer to the flat weight vector and are int64, ascending.

    Attributes:
        mixture: the final Gaussians.
        index: the Gaussian of every weight, (n,) int64, -1 for outliers. Ellipse points keep their own number.
        counts: weights of each Gaussian, (K,).
        value_outliers: positions with a large mean.
        gradient_outliers: positions with a large gradient but not a large mean.
        small_outliers: positions whose cluster was dissolved.
        ellipses: positions of the ellipse points, (p,).
        blend_index: Gaussians that each is blended from, (p, neighbours).
        blend_alpha: their shares, which sum to 1, (p, neighbours).
        k_fitted: Gaussians after the fit.
        k_before_merging: Gaussians after small clusters were dissolved.
        index_bits: entropy of the index in bits per weight that has one.
        timings: seconds by step.
    """

    mixture: PlaneMixture
    index: Tensor
    counts: Tensor
    value_outliers: Tensor
    gradient_outliers: Tensor
    small_outliers: Tensor
    ellipses: Tensor
    blend_index: Tensor
    blend_alpha: Tensor
    k_fitted: int
    k_before_merging: int
    index_bits: float
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def outliers(self) -> Tensor:
        """Positions of all outliers."""
        return (self.index < 0).nonzero()[:, 0]


@fixed_order()
def outliers(
    mean: Tensor, gradient: Tensor | None, tau_w: float | None = 0.2, gradient_fraction: float = 0.01
) -> dict[str, Tensor]:
    """Find weights that keep their own mean and std: `|mean_i| > tau_w`, or `|gradient_i|` among the largest.

    Args:
        mean: (n,).
        gradient: of the loss with respect to the means, averaged over batches, (n,); None if unknown.
        tau_w: largest mean of other weights; None for no limit.
        gradient_fraction: share of all weights; 0 for none. Ties at the threshold are not outliers.

    Returns:
        Masks `value` and `gradient`, (n,) each; they may overlap.
    """
    nothing = torch.zeros(len(mean), dtype=torch.bool, device=mean.device)
    value = nothing if tau_w is None else mean.detach().abs() > tau_w
    many = round(gradient_fraction * len(mean))
    if gradient is None or many == 0:
        return {"value": value, "gradient": nothing.clone()}
    size = gradient.detach().abs()
    return {"value": value, "gradient": size > size.kthvalue(len(size) - many).values}


@fixed_order()
def survey(
    mean: Tensor,
    std: Tensor,
    gradient: Tensor | None = None,
    settings: PlaneSettings | None = None,
    team: ProcessGroup = ALONE,
) -> Plane:
    """Run stage 2. On a CPU the result depends on the seed, not on the number of threads.

    If every cluster is too small, all weights become outliers and a warning is raised.

    Args:
        mean: (n,).
        std: (n,).
        gradient: of the loss with respect to the means, averaged over batches, (n,); None for no gradient outliers.
        settings: by default relative to the cloud.
        team: processes that hold the same weights and divide the work; each summarises its part of the cloud, and the
            summaries, whose size is independent of the number of weights, are added.
    """
    settings = settings or PlaneSettings()
    mean, std = mean.detach(), std.detach()
    if mean.ndim != 1 or mean.shape != std.shape or (gradient is not None and gradient.shape != mean.shape):
        shapes = [None if t is None else tuple(t.shape) for t in (mean, std, gradient)]
        raise UserError(f"mean, std and gradient must be vectors of one length, not of shapes {shapes}")
    settings = settings.for_cloud(mean)
    assert settings.tau_w != "auto"
    assert settings.n_min != "auto"
    timings: dict[str, float] = {}
    with _timed(timings, "outliers", mean.device):
        masks = outliers(mean, gradient, settings.tau_w, settings.gradient_fraction)
        positions = (~(masks["value"] | masks["gradient"])).nonzero()[:, 0]
        points = torch.stack((mean.index_select(0, positions), std.index_select(0, positions)), 1)
    with _timed(timings, "fit", mean.device):
        mixture = _fit(points, settings, team)
        k_fitted = len(mixture)
    with _timed(timings, "assign", mean.device):
        index = mixture.assign(points)
        counts = torch.bincount(index, minlength=k_fitted)
    with _timed(timings, "dissolve", mean.device):
        mixture, mapping = dissolve(mixture, counts, max(settings.n_min, 1))
        counts = counts[mapping >= 0]
        k_before = len(mixture)
        if k_before:
            _renumber(index, mapping)
        else:
            index.fill_(-1)
            why = (
                f"no cluster of {len(points)} weights has n_min={settings.n_min} members: all weights are outliers "
                f"(choose fewer Gaussians than k={k_fitted}, or a smaller n_min)"
                if len(points)
                else f"all {len(mean)} weights are outliers by value or gradient: raise tau_w={settings.tau_w}"
            )
            warnings.warn(why, stacklevel=3)  # past the decorator
    with _timed(timings, "merge", mean.device):
        if settings.merge is not None and k_before > 1:
            sizes = None if gradient is None else _mean_size(gradient.detach(), positions, index, counts)
            mixture, counts, mapping = merge_all(
                mixture,
                counts,
                sizes,
                tau_d=settings.tau_d,
                tau_g=settings.tau_g,
                tau_v=settings.tau_v,
                how=settings.merge,
                reading=settings.reading,
            )
            _renumber(index, mapping)
    with _timed(timings, "ellipses", mean.device):
        rows = index.new_empty(0)
        if settings.ellipse is not None:
            rows = ellipse_points(points, mixture, settings.chi2, settings.ellipse, index)
        blend_index, blend_alpha = blend(points[rows], mixture, settings.neighbours, settings.keep)
    numbers = torch.full((len(mean),), -1, dtype=torch.int64, device=mean.device)
    numbers[positions] = index
    return Plane(
        mixture=mixture,
        index=numbers,
        counts=counts,
        value_outliers=masks["value"].nonzero()[:, 0],
        gradient_outliers=(masks["gradient"] & ~masks["value"]).nonzero()[:, 0],
        small_outliers=positions[index < 0],
        ellipses=positions[rows],
        blend_index=blend_index,
        blend_alpha=blend_alpha,
        k_fitted=k_fitted,
        k_before_merging=k_before,
        index_bits=entropy_bits(counts),
        timings=timings,
    )


def _fit(points: Tensor, settings: PlaneSettings, team: ProcessGroup) -> PlaneMixture:
    if len(points) == 0:
        nothing = points.new_zeros(0, dtype=torch.float64)
        return PlaneMixture(nothing.reshape(0, 2), nothing.reshape(0, 2, 2), nothing)
    if settings.bits_per_weight is not None:
        expected = round(2**settings.bits_per_weight)
    else:
        expected = BIC_CELLS_FOR if settings.k == "bic" else int(settings.k)
    grid = make_grid(points, settings.bins or default_bins(expected), settings.seed)
    cloud = make_histogram(points[team.part(len(points))], grid)
    team.sum(cloud.sums)
    if settings.bits_per_weight is not None:
        return fit_by_bits(cloud, settings.bits_per_weight, settings.seed, settings.iterations)
    if settings.k == "bic":
        return fit_by_bic(cloud, settings.seed, settings.iterations)
    return fit_mixture(cloud, expected, seed=settings.seed, iterations=settings.iterations)


def _renumber(index: Tensor, mapping: Tensor) -> None:
    """Replace old numbers by new ones; -1 stays."""
    for part in slices(len(index), CHUNK):
        index[part] = torch.where(index[part] >= 0, mapping.index_select(0, index[part].clamp_min(0)), -1)


def _mean_size(gradient: Tensor, positions: Tensor, index: Tensor, counts: Tensor) -> Tensor:
    """Return the mean absolute gradient over the weights of each Gaussian, (K,)."""
    sums = torch.zeros(len(counts) + 1, dtype=torch.float64, device=gradient.device)
    for part in slices(len(index), CHUNK):
        size = gradient.index_select(0, positions[part]).abs().to(torch.float64)
        sums += torch.bincount(index[part] + 1, size, len(sums))
    return sums[1:] / counts.clamp_min(1)


@contextmanager
def _timed(timings: dict[str, float], step: str, device: torch.device) -> Iterator[None]:
    start = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    timings[step] = time.perf_counter() - start
