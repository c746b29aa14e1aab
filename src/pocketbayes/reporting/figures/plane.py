"""2DGBNN's figures: the plane of (mean, std) with its Gaussians, its 1 % and 99 % lines, a layer's density of means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pocketbayes.plane import Plane
    from pocketbayes.posteriors import Shared

SHOWN_POINTS = 20_000
"""Points of a cloud that are drawn, at most: more are a blot, and megabytes in a vector file."""
LINES = (0.01, 0.99)
MARGIN = 2.0


@dataclass(frozen=True)
class PlaneView:
    """What a plane holds.

    Attributes:
        centres: (K, 2) means and stds.
        covs: (K, 2, 2).
        cloud: (n, 2) points of the weights that the Gaussians stand for; none where they are no longer known.
        outliers: (o, 2) weights that keep their own mean and std.
        ellipse_points: (p, 2) weights that are blended from several Gaussians.
    """

    centres: Tensor
    covs: Tensor
    cloud: Tensor
    outliers: Tensor
    ellipse_points: Tensor

    @classmethod
    def of_survey(cls, mean: Tensor, std: Tensor, survey: Plane) -> PlaneView:
        """Return the plane as stage 2 found it."""
        points = torch.stack([mean, std], 1).detach().cpu()
        inside = (survey.index >= 0).cpu()
        return cls(
            survey.mixture.means.cpu(),
            survey.mixture.covs.cpu(),
            points[inside],
            points[~inside],
            points[survey.ellipses.cpu()],
        )

    @classmethod
    def of_posterior(cls, posterior: Shared) -> PlaneView:
        """Return the plane of a shared network as it is now: its weights lie in their Gaussians' centres."""
        with torch.no_grad():
            centres = torch.stack([posterior.centre_mean, posterior.centre_std], 1)
            blended = (posterior.blend_alpha[..., None] * centres[posterior.blend_index]).sum(1)
            outliers = torch.stack([posterior.outlier_mean, F.softplus(posterior.outlier_rho)], 1)
            covs = posterior.covariances()
        return cls(centres.cpu(), covs.cpu(), centres[:0].cpu(), outliers.cpu(), blended.cpu())


def plane(views: Mapping[str, PlaneView]) -> Figure:
    """Return gaussians at one and two standard deviations, ellipse points and outliers; a panel a view, on common axes.

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
                x, y = _some(points).unbind(1)
                label = f"{len(points):,} {name}"
                panel.scatter(x, y, s=size, c=colour, marker=marker, linewidths=0.6, label=label, rasterized=True)
        for deviations, width in ((1, 1.1), (2, 0.5)):
            panel.add_collection(_ellipses(view, deviations, linewidth=width, transform=panel.transData))
        panel.plot([], [], color=PALETTE[0], label=f"{len(view.centres):,} Gaussians, 1 and 2 std")
        panel.autoscale_view()
        panel.set(title=title, xlabel="mean")
        panel.legend(fontsize=7, loc="upper right", framealpha=0.9)
    # Far outliers would press all that matters into a strip.
    reach = max(
        (MARGIN * float(view.centres[:, 0].abs().amax()) for view in views.values() if len(view.centres)), default=0
    )
    if reach > 0:
        axes[0, 0].set_xlim(-reach, reach)
    axes[0, 0].set(ylabel="std")
    return figure


def plane_lines(mean: Tensor, std: Tensor) -> Figure:
    """Return the cloud of all weights with the lines that 1 % and 99 % of the means lie below."""
    figure, axes = canvas(size=(5.2, 4.0))
    panel = axes[0, 0]
    points = torch.stack([mean, std], 1).detach().cpu()
    x, y = _some(points).unbind(1)
    panel.scatter(x, y, s=2, c=PALETTE[0], linewidths=0, alpha=0.5, rasterized=True, label=f"{len(points):,} weights")
    ordered = points[:, 0].sort().values
    for share in LINES:
        at = float(ordered[round(share * (len(ordered) - 1))])
        panel.axvline(at, color=PALETTE[1], linestyle="--", linewidth=1)
        panel.annotate(f" {100 * share:.0f} %: {at:.3f}", (at, 1), xycoords=("data", "axes fraction"), va="top", size=8)
    panel.set(xlabel="mean", ylabel="std")
    panel.legend(fontsize=7, loc="lower right")
    return figure


def layer_density(mean: Tensor, name: str) -> Figure:
    """Return the density of one layer's means, with a normal density of the same mean and std for comparison."""
    figure, axes = canvas()
    panel = axes[0, 0]
    values = mean.detach().flatten().cpu().double()
    panel.hist(values.numpy(), bins=120, density=True, color=PALETTE[5], label=f"{len(values):,} weights")
    x = torch.linspace(float(values.min()), float(values.max()), 400, dtype=torch.float64)
    normal = torch.distributions.Normal(values.mean(), values.std().clamp_min(1e-12))
    panel.plot(x, normal.log_prob(x).exp(), color=INK, linewidth=1, label="normal, same mean and std")
    panel.set(xlabel="mean", ylabel="density", title=name)
    panel.legend(fontsize=7)
    return figure


def gaussians_curve(rows: Mapping[str, Mapping[str, float]], reference: Mapping[str, float]) -> Figure:
    """Plot accuracy, NLL and index bits per weight against the number of Gaussians.

    Args:
        rows: by label; each has "k", "accuracy", "nll" and "index bits".
        reference: "accuracy" and "nll" of the deterministic network.
    """
    figure, axes = canvas(1, 3, size=(3.6, 3.0))
    ordered = sorted(rows.values(), key=lambda row: row["k"])
    for panel, (key, title, scale) in zip(
        axes.flat, (("accuracy", "accuracy, %", 100), ("nll", "NLL", 1), ("index bits", "index bits a weight", 1))
    ):
        panel.plot([row["k"] for row in ordered], [scale * row[key] for row in ordered], marker="o", label="2DGBNN")
        if key in reference:
            panel.axhline(scale * reference[key], color=PALETTE[6], linestyle="--", linewidth=1, label="deterministic")
            panel.legend(fontsize=7)
        panel.set_xscale("log", base=2)
        panel.set(xlabel="K", title=title)
    return figure


def _some(points: Tensor) -> Tensor:
    """Return the same ones each time, where there are too many."""
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
