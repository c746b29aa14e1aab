"""Training curves of NLL and KL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 20
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
        if seen and min(seen) > 0 and max(seen) > WIDE * min(seen):
            panel.set_yscale("log")
        panel.set(xlabel="epochs, all stages", ylabel=label)
        if seen:
            panel.legend(fontsize=7, frameon=False)
    return figure


def _drawn(value: Any, key: str) -> bool:
    return isinstance(value, int | float) and (key != "kl" or value > 0)
