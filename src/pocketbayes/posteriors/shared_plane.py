"""The Gaussians that weights share in the plane of means and stds, for figures and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from pocketbayes.posteriors.shared import Shared


@dataclass(frozen=True)
class SharedPlane:
    """Gaussians in the plane of (mean, std), and the weights that do not simply belong to one.

    Attributes:
        draw: How weights are drawn from a Gaussian.
        centres: (K, 2) means and stds.
        factors: (K, 3) Cholesky entries a, b, c.
        covs: (K, 2, 2).
        drawn_stds: (K,) stds of a weight drawn from each Gaussian, as `moments` gives them.
        members: (K, layers) weights of each Gaussian; a blended one counts in each of its Gaussians by its share.
        outliers: (o, 2) weights that keep their own mean and std.
        blends: (p, 2) weights that are blended from several Gaussians.
    """

    draw: str
    centres: Tensor
    factors: Tensor
    covs: Tensor
    drawn_stds: Tensor
    members: Tensor
    outliers: Tensor
    blends: Tensor


@torch.no_grad()
def view_plane(posterior: Shared) -> SharedPlane:
    """Return the current plane; weights lie at the centres of their Gaussians."""
    k, layers = posterior.gaussians, len(posterior.layout)
    segments = posterior.layout.segments(posterior.index.device)
    members = torch.zeros(k * layers, dtype=torch.float64, device=segments.device)
    inside = posterior.index < k
    members += torch.bincount(posterior.index[inside] * layers + segments[inside], minlength=k * layers)
    blended = posterior.index >= k + posterior.outliers
    entry = posterior.index[blended] - k - posterior.outliers
    places = posterior.blend_index[entry] * layers + segments[blended][:, None]
    members.index_add_(0, places.flatten(), posterior.blend_alpha[entry].double().flatten())
    centres = torch.stack([posterior.centre_mean, posterior.centre_std], 1)
    factors = [F.softplus(posterior.raw_a), posterior.off_diagonal, F.softplus(posterior.raw_c)]
    return SharedPlane(
        draw=posterior.draw,
        centres=centres,
        factors=torch.stack(factors, 1),
        covs=posterior.covariances(),
        drawn_stds=posterior.stds(),
        members=members.view(k, layers),
        outliers=torch.stack([posterior.outlier_mean, F.softplus(posterior.outlier_rho)], 1),
        blends=(posterior.blend_alpha[..., None] * centres[posterior.blend_index]).sum(1),
    )
