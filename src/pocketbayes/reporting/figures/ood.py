"""Histograms of uncertainty on in- and out-of-distribution data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4


def ood_histograms(
    histograms: Mapping[str, Mapping[str, Any]], inside: str = "own data", outside: str = "other data"
) -> Figure:
    """Draw the distribution of a score on in- and out-of-distribution data, one panel per network.

    Args:
        histograms: By name of the network, `edges` of the bins, counts `inside` and `outside`, and the `score`'s name.
        inside: The label of the in-distribution data.
        outside: The label of the out-of-distribution data.
    """
    columns = min(len(histograms), COLUMNS)
    figure, axes = canvas(math.ceil(len(histograms) / columns), columns, size=(2.7, 2.3))
    for panel in axes.flat[len(histograms) :]:
        panel.set_axis_off()
    for place, (panel, (name, histogram)) in enumerate(zip(axes.flat, histograms.items())):
        edges = np.asarray(histogram["edges"], dtype=np.float64)
        for label, key, colour in ((inside, "inside", PALETTE[0]), (outside, "outside", PALETTE[1])):
            counts = np.asarray(histogram[key], dtype=np.float64)
            panel.stairs(counts / max(counts.sum(), 1), edges, fill=True, color=colour, alpha=0.35)
            panel.stairs(counts / max(counts.sum(), 1), edges, color=colour, linewidth=1.3, label=label)
        # Most images are in one bin; a square-root scale keeps the others visible.
        panel.set_yscale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
        panel.set_yticks([0, 0.01, 0.05, 0.2, 0.5, 1.0], ["0", "1 %", "5 %", "20 %", "50 %", "100 %"])
        panel.set(xlabel=str(histogram.get("score", "score")), xlim=(edges[0], edges[-1]))
        panel.set_title(name, fontsize=9)
        if place == 0:
            panel.legend(fontsize=7, frameon=False)
    return figure
