"""Figures of a trained network: training curves, present and random weights by layer, stds of the first layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_SCALE_RATIO = 20
"""Ratio of largest to smallest value above which a log scale is used."""


def training_curves(epochs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Plot NLL on the left (validation dashed) and KL in nats on the right, stage after stage.

    Args:
        epochs: By name of the run, the rows of its metrics file.
    """
    figure, axes = canvas(1, 2)
    for panel, key, label in ((axes[0, 0], "nll", "NLL"), (axes[0, 1], "kl", "KL (nats)")):
        seen: list[float] = []
        for place, (name, rows) in enumerate(epochs.items()):
            colour = PALETTE[place % len(PALETTE)]
            for measure, style in ((key, "-"), (f"val_{key}", "--")):
                points = [(number, row[measure]) for number, row in enumerate(rows, 1) if _drawn(row.get(measure), key)]
                if points:
                    seen += [value for _, value in points]
                    title = name if style == "-" else None
                    panel.plot(*zip(*points), linestyle=style, color=colour, linewidth=1.4, label=title)
        if seen and min(seen) > 0 and max(seen) > LOG_SCALE_RATIO * min(seen):
            panel.set_yscale("log")
        panel.set(xlabel="epochs, all stages", ylabel=label)
        if seen:
            panel.legend(fontsize=7, frameon=False)
    return figure


def _drawn(value: Any, key: str) -> bool:
    return isinstance(value, int | float) and (key != "kl" or value > 0)


def layer_fractions(layers: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """Draw two bars per weight tensor: the fraction that is not exactly 0, and the fraction that is random.

    Args:
        layers: `name`, `present` and `random` of each, in the network's order.
        title: The title of the figure.
    """
    figure, axes = canvas(size=(4.6, max(1.6, 0.34 * len(layers) + 1.0)))
    panel = axes[0, 0]
    place = np.arange(len(layers))
    for shift, key, label, colour in (
        (-0.2, "present", "present", PALETTE[5]),
        (0.2, "random", "Bayesian", PALETTE[0]),
    ):
        panel.barh(place + shift, [layer[key] for layer in layers], 0.38, color=colour, label=label)
    panel.set_yticks(place, [layer["name"] for layer in layers])
    panel.invert_yaxis()
    panel.set(xlim=(0, 1), xlabel="fraction of the weights")
    panel.set_title(title, fontsize=9)
    panel.grid(visible=False, axis="y")
    figure.legend(fontsize=7, frameon=False, loc="outside lower right", ncols=2)
    return figure


def sigma_map(picture: np.ndarray, title: str = "") -> Figure:
    """Draw the std of each weight as a colour; stds of 0 are grey, NaN (between tiles) is white.

    Args:
        picture: (rows, columns) stds.
        title: The title of the figure.
    """
    rows, columns = picture.shape
    figure, axes = canvas(size=(4.6, min(max(4.0 * rows / columns, 1.2), 6.0) + 0.4))
    panel = axes[0, 0]
    panel.imshow(np.where(picture == 0, 0.0, np.nan), cmap="Greys", vmin=-1, vmax=2, interpolation="nearest")
    random = np.ma.masked_where(~(picture > 0), picture)
    image = panel.imshow(random, cmap="viridis", interpolation="nearest")
    panel.set_axis_off()
    panel.set_title(title, fontsize=9)
    figure.colorbar(image, ax=panel, shrink=0.8, label="std")
    return figure
