"""What a smaller or faster network costs: a measure against bytes or seconds, and the front that nothing beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pocketbayes.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other is at least as low in both coordinates, by the first; equal ones once."""
    front: list[Point] = []
    for x, y in sorted(points):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def pareto(points: Mapping[str, Point], x_label: str, y_label: str = "NLL") -> Figure:
    """A point a network, both coordinates better when lower, x on a log scale; the front as steps.

    Args:
        points: (x, y) by name. Names that agree up to a comma share a colour, and what follows stands at the point.
        x_label: What x is, bytes or seconds say.
        y_label: What y is.
    """
    from matplotlib.ticker import EngFormatter, LogLocator

    figure, axes = canvas()
    panel = axes[0, 0]
    front = pareto_front(list(points.values()))
    panel.step(*zip(*front), where="post", color=INK, linewidth=0.9, linestyle="--", alpha=0.6, label="front")
    families: dict[str, list[str]] = {}
    for name in points:
        families.setdefault(name.partition(", ")[0], []).append(name)
    for order, (family, names) in enumerate(families.items()):
        colour = PALETTE[order % len(PALETTE)]
        for place, name in enumerate(names):
            panel.plot(*zip(points[name]), "o", color=colour, markersize=6, label=None if place else family)
            aside = (5, 5 if (order + place) % 2 else -11)  # neighbours' texts on different sides
            rest = name.partition(", ")[2]
            panel.annotate(rest, points[name], aside, textcoords="offset points", fontsize=7, color=colour)
    panel.set_xscale("log")
    for which in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
        which(EngFormatter())
    panel.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5, 7)))
    panel.tick_params(which="minor", labelsize=8)
    panel.margins(0.12)
    panel.set(xlabel=x_label, ylabel=y_label)
    panel.legend(fontsize=7, frameon=False)
    return figure
