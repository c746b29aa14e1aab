"""One-dimensional regression: predictions and their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Sequence[float]
COLUMNS = 3


def regression_bands(
    grid: Values,
    curves: Mapping[str, tuple[Values, Values]],
    points: tuple[Values, Values] | None = None,
    truth: Values | None = None,
    interval: tuple[float, float] | None = None,
    width: float = 3.0,
) -> Figure:
    """Draw mean and a band of mean +- 3 std, one panel per network with common axes.

    Args:
        grid: x.
        curves: Mean and std on the grid, by name of the network.
        points: The training data, x and y.
        truth: The true curve on the grid.
        interval: The range of the points; its ends are marked.
        width: Stds above and below the mean.
    """
    columns = min(len(curves), COLUMNS)
    figure, axes = canvas(math.ceil(len(curves) / columns), columns, size=(2.9, 2.5), sharex=True, sharey=True)
    x = np.asarray(grid)
    for panel in axes.flat[len(curves) :]:
        panel.set_visible(False)
    for panel, (name, (mean, std)) in zip(axes.flat, curves.items()):
        middle, spread = np.asarray(mean), width * np.asarray(std)
        label = f"mean ± {width:g} std"
        panel.fill_between(x, middle - spread, middle + spread, color=PALETTE[5], alpha=0.45, linewidth=0, label=label)
        panel.plot(x, middle, color=PALETTE[0], linewidth=1.5, label="mean")
        if truth is not None:
            panel.plot(x, truth, color=INK, linewidth=0.9, linestyle="--", label="truth")
        if points is not None:
            panel.plot(*points, "o", color=PALETTE[1], markersize=3, label="training points")
        for end in interval or ():
            panel.axvline(end, color=INK, linewidth=0.7, linestyle=":")
        panel.set_title(name)
    for panel in axes[-1]:
        panel.set_xlabel("x")
    for row in axes:
        row[0].set_ylabel("y")
    axes.flat[0].legend(fontsize=6.5, frameon=False, loc="upper left")
    return figure
