"""2DGBNN: the plane that stage 2 found, its 1 % and 99 % lines, a density of means, accuracy against K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pocketbayes.reporting.figures.plane import PlaneView, thinned
from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pocketbayes.plane import Plane

LINES = (0.01, 0.99)


def view_survey(mean: Tensor, std: Tensor, survey: Plane) -> PlaneView:
    """Return the plane as stage 2 found it."""
    points = torch.stack([mean, std], 1).detach().cpu()
    inside = (survey.index >= 0).cpu()
    return PlaneView(
        survey.mixture.means.cpu(),
        survey.mixture.covs.cpu(),
        points[inside],
        points[~inside],
        points[survey.ellipses.cpu()],
    )


def plane_lines(mean: Tensor, std: Tensor) -> Figure:
    """Return the cloud of all weights with the lines that 1 % and 99 % of the means lie below."""
    figure, axes = canvas(size=(5.2, 4.0))
    panel = axes[0, 0]
    points = torch.stack([mean, std], 1).detach().cpu()
    x, y = thinned(points).unbind(1)
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
