"""Cost against size on logarithmic axes, where a power law is a straight line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pocketbayes.reporting.figures.style import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3
MARKERS = "osD^"
FITTED = 3


@dataclass(frozen=True)
class Growth:
    """The contents of a panel.

    Attributes:
        size: The varied quantity, with its unit.
        cost: The measured cost, with its unit.
        places: The sizes; the power law is fitted to the last three.
        curves: The cost at each size, by name.
    """

    size: str
    cost: str
    places: Sequence[float]
    curves: Mapping[str, Sequence[float]]


def power_laws(panels: Sequence[Growth]) -> Figure:
    """Draw the panels; a dashed line shows the power law of the last three sizes, with its exponent b."""
    rows = -(-len(panels) // COLUMNS)
    figure, axes = canvas(rows, COLUMNS, size=(4.2, 3.4))
    for panel, growth in zip(axes.flat, panels):
        panel.set(xscale="log", yscale="log", xlabel=growth.size, ylabel=growth.cost)
        if growth.places[0] > growth.places[-1]:
            panel.invert_xaxis()
        places = np.asarray(growth.places, dtype=float)
        for (name, values), marker in zip(growth.curves.items(), MARKERS):
            slope, offset = np.polyfit(np.log(places[-FITTED:]), np.log(values[-FITTED:]), 1)
            (line,) = panel.plot(places, values, marker=marker, markersize=4, label=f"{name}: b = {slope:.2f}")
            panel.plot(places, np.exp(offset) * places**slope, linestyle="--", linewidth=0.8, color=line.get_color())
        every = np.log10([value for values in growth.curves.values() for value in values])
        room = 0.3 * len(growth.curves)  # for the legend
        panel.set_ylim(10 ** np.floor(every.min()), 10 ** np.ceil(every.max() + room))
        panel.yaxis.set_minor_formatter("")
        panel.legend(fontsize=7.5, frameon=False, loc="upper left")
    for panel in axes.flat[len(panels) :]:
        panel.set_visible(False)
    return figure
