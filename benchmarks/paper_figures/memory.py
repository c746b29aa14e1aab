"""Memory during prediction against the number of images or calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def memory(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw resident memory against the work done, one panel per kind of work, with an axis from 0.

    Args:
        curves: By what was counted, such as "images evaluated": (count, megabytes) in order.
    """
    figure, axes = canvas(1, len(curves))
    for panel, (what, points) in zip(axes.flat, curves.items()):
        panel.plot(*zip(*points), color=PALETTE[0], linewidth=1.4)
        panel.set(xlabel=what, ylabel="resident memory (MB)", xlim=(0, None))
        panel.set_ylim(0, 1.2 * max(size for _, size in points))
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        panel.locator_params(axis="x", nbins=5)
    return figure
