"""The plane of (mean, std) with its Gaussians: 2DGBNN's figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pocketbayes.posteriors.shared_plane import SharedPlane
from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_POINTS = 20_000
"""Largest number of drawn points: more are indistinguishable and take megabytes in a vector file."""
MARGIN = 2.0


@dataclass(frozen=True)
class PlaneView:
    """The contents of a plane.

    Attributes:
        centres: (K, 2) means and stds.
        covs: (K, 2, 2).
        cloud: (n, 2) points of the weights assigned to Gaussians; empty if no longer known.
        outliers: (o, 2) weights that keep their own mean and std.
        ellipse_points: (p, 2) weights that are blended from several Gaussians.
    """

    centres: Tensor
    covs: Tensor
    cloud: Tensor
    outliers: Tensor
    ellipse_points: Tensor

    @classmethod
    def of(cls, shared: SharedPlane) -> PlaneView:
        """Return the current plane of a shared network, whose weights lie at their Gaussians' centres."""
        parts = (shared.centres, shared.covs, shared.centres[:0], shared.outliers, shared.blends)
        return cls(*(part.cpu() for part in parts))


def plane(views: Mapping[str, PlaneView]) -> Figure:
    """Draw Gaussians at one and two standard deviations, ellipse points and outliers, one panel per view.

    Args:
        views: by title, such as "before training" and "after".
    """
    figure, axes = canvas(1, len(views), size=(5.2, 4.0), sharex=True, sharey=True)
    for panel, (title, view) in zip(axes.flat, views.items()):
        kinds = {
            "weights": (view.cloud, "#BBBBBB", 2, "."),
            "outliers": (view.outliers, PALETTE[1], 5, "."),
            "ellipse points": (view.ellipse_points, PALETTE[2], 8, "x"),
        }
        for name, (points, colour, size, marker) in kinds.items():
            if len(points):
                x, y = thinned(points).unbind(1)
                label = f"{len(points):,} {name}"
                panel.scatter(x, y, s=size, c=colour, marker=marker, linewidths=0.6, label=label, rasterized=True)
        for deviations, width in ((1, 1.1), (2, 0.5)):
            panel.add_collection(_ellipses(view, deviations, linewidth=width, transform=panel.transData))
        panel.plot([], [], color=PALETTE[0], label=f"{len(view.centres):,} Gaussians, 1 and 2 std")
        panel.autoscale_view()
        panel.set(title=title, xlabel="mean")
        panel.legend(fontsize=7, loc="upper right", framealpha=0.9)
    # Far outliers would compress the rest.
    reach = max(
        (MARGIN * float(view.centres[:, 0].abs().amax()) for view in views.values() if len(view.centres)), default=0
    )
    if reach > 0:
        axes[0, 0].set_xlim(-reach, reach)
    axes[0, 0].set(ylabel="std")
    return figure


def thinned(points: Tensor) -> Tensor:
    """Return at most `SHOWN_POINTS` points, always the same."""
    if len(points) <= SHOWN_POINTS:
        return points
    return points[torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:SHOWN_POINTS]]


def _ellipses(view: PlaneView, deviations: float, linewidth: float, transform: Any) -> Any:
    from matplotlib.collections import EllipseCollection

    variances, axes = torch.linalg.eigh(view.covs.double())
    sides = 2 * deviations * variances.clamp_min(0).sqrt()
    angles = torch.rad2deg(torch.atan2(axes[:, 1, 1], axes[:, 0, 1]))
    return EllipseCollection(
        sides[:, 1].numpy(),
        sides[:, 0].numpy(),
        angles.numpy(),
        units="xy",
        offsets=view.centres.numpy(),
        offset_transform=transform,
        facecolors="none",
        edgecolors=PALETTE[0],
        linewidths=linewidth,
    )
