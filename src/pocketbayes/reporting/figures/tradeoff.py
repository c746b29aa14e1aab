"""Quality against size or time: the Pareto front of networks, and the files of a compression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point dominates, sorted by the first coordinate, without duplicates."""
    front: list[Point] = []
    for x, y in sorted(points):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def pareto(points: Mapping[str, Point], x_label: str, y_label: str = "NLL") -> Figure:
    """Plot a point per network, with x on a log scale and the Pareto front (lower is better) as steps.

    Args:
        points: (x, y) by name. Names that agree up to a comma share a colour; the rest is written at the point.
        x_label: The label of x, such as bytes or seconds.
        y_label: The label of y.
    """
    from matplotlib.ticker import EngFormatter, LogLocator

    figure, axes = canvas()
    panel = axes[0, 0]
    front = pareto_front(list(points.values()))
    panel.step(*zip(*front), where="post", color=INK, linewidth=0.9, linestyle="--", alpha=0.6, label="front")
    families: dict[str, list[str]] = {}
    colours: dict[str, str] = {}
    for name in points:
        families.setdefault(name.partition(", ")[0], []).append(name)
    for order, (family, names) in enumerate(families.items()):
        colour = PALETTE[order % len(PALETTE)]
        colours |= dict.fromkeys(names, colour)
        panel.plot(*zip(*(points[name] for name in names)), "o", color=colour, markersize=6, label=family)
    panel.set_xscale("log")
    for which in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
        which(EngFormatter())
    panel.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    panel.tick_params(which="minor", labelsize=8)
    panel.margins(0.12)
    panel.set(xlabel=x_label, ylabel=y_label)
    panel.legend(fontsize=7, frameon=False)
    figure.canvas.draw()  # computes the layout, which positions depend on
    shown = [name for name in points if name.partition(", ")[2]]
    spots = panel.transData.transform([points[name] for name in points]) * 72 / figure.dpi
    places = dict(zip(points, [(float(x), float(y)) for x, y in spots]))
    sizes = {name: (4.3 * len(name.partition(", ")[2]), 7.0) for name in shown}
    for name, aside in beside(places, sizes, panel.bbox.x0 * 72 / figure.dpi).items():
        text = name.partition(", ")[2]
        panel.annotate(text, points[name], aside, textcoords="offset points", fontsize=7, color=colours[name])
    return figure


def beside(places: Mapping[str, Point], sizes: Mapping[str, Point], left: float = -math.inf) -> dict[str, Point]:
    """Return the nearest position for each label that covers no point and no earlier label.

    Args:
        places: The points by name.
        sizes: Width and height of the labels of some of them.
        left: The left limit of labels.

    Returns:
        By name, the lower left corner of the label relative to its point.
    """
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in places.values()]
    found: dict[str, Point] = {}
    for name, (width, height) in sizes.items():
        x, y = places[name]
        sides = [side for side in (6.0, -width - 6) if side > 0 or x + side >= left]
        tries = [(side, rise) for rise in (-2.5, 5, -10, 13, -18, 21, -26) for side in sides]
        boxes = [(x + dx, y + dy, x + dx + width, y + dy + height) for dx, dy in tries]
        covered = [sum(_overlap(box, other) for other in taken) for box in boxes]
        best = covered.index(min(covered))
        found[name] = tries[best]
        taken.append(boxes[best])
    return found


def _overlap(one: tuple[float, ...], two: tuple[float, ...]) -> float:
    """Return the area that two boxes (left, bottom, right, top) share."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    return max(width, 0.0) * max(height, 0.0)


def rate_distortion(found: Mapping[str, Any]) -> Figure:
    """Plot NLL and, if there is one, accuracy against file size.

    Args:
        found: The result of `Compressed.to_json`: `trials`, the `front` of the best, `chosen` and `before`.
    """
    measures = ["nll"] + (["accuracy"] if found["before"]["accuracy"] is not None else [])
    figure, axes = canvas(1, len(measures))
    for panel, measure in zip(axes[0], measures):
        _panel(panel, found, measure)
    axes[0, 0].legend(fontsize=7, frameon=False)
    return figure


def _panel(panel: Any, found: Mapping[str, Any], measure: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def points(trials: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
        return [trial["bytes"] / 1000 for trial in trials], [trial[measure] for trial in trials]

    coded = [trial for trial in found["trials"] if "lam" in trial["how"]]
    kept = [trial for trial in found["trials"] if "lam" not in trial["how"]]
    panel.plot(*points(found["front"]), color=PALETTE[6], linewidth=1, zorder=1, label="best for their size")
    panel.scatter(*points(kept), s=16, color=PALETTE[0], marker="s", label="the network's own storage")
    panel.scatter(*points(coded), s=16, color=PALETTE[1], label="coded weights")
    panel.scatter(*points([found["chosen"]]), s=90, facecolors="none", edgecolors=PALETTE[7], label="chosen")
    panel.axhline(found["before"][measure], color=PALETTE[2], linewidth=0.8, linestyle="--", label="before")
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("file (kB)")
    panel.set_ylabel({"nll": "validation NLL (nats)", "accuracy": "validation accuracy"}[measure])
    _focus(panel, [trial[measure] for trial in found["trials"]], found["before"][measure])


def _focus(panel: Any, values: Sequence[float], before: float) -> None:
    """Cut off trials many times worse than the original network, which would flatten the rest."""
    spread = sorted(abs(value - before) for value in values)[len(values) // 2]
    reach = max(4 * spread, 0.02)
    panel.set_ylim(max(min(values), before - reach) - 0.1 * reach, min(max(values), before + reach) + 0.1 * reach)
