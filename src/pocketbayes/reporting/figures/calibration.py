"""Calibration figures: reliability diagrams, confidence by class, risk against coverage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4


def reliability(diagrams: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Figure:
    """Plot accuracy by confidence, one panel per network; bars end at the accuracy, the orange part is the gap.

    Args:
        diagrams: By name of the network, `confidence`, `accuracy` and `count` of each bin; empty bins None or NaN.
    """
    columns = min(len(diagrams), COLUMNS)
    figure, axes = canvas(math.ceil(len(diagrams) / columns), columns, size=(2.5, 2.6), sharex=True, sharey=True)
    for panel in axes.flat[len(diagrams) :]:
        panel.set_axis_off()
    for place, (panel, (name, diagram)) in enumerate(zip(axes.flat, diagrams.items())):
        confidence, accuracy, count = (_floats(diagram[key]) for key in ("confidence", "accuracy", "count"))
        bins = len(count)
        left, known = np.arange(bins) / bins, count > 0
        error = float((count[known] * np.abs(accuracy - confidence)[known]).sum() / max(count.sum(), 1))
        width = 0.92 / bins
        panel.bar(left[known], accuracy[known], width, align="edge", color=PALETTE[0])
        gap = (confidence - accuracy)[known]
        panel.bar(left[known], gap, width, bottom=accuracy[known], align="edge", color=PALETTE[1], alpha=0.55)
        panel.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--")
        panel.set(xlim=(0, 1), ylim=(0, 1))
        panel.set_title(f"{name} (ECE {error:.3f})", fontsize=9)
        if place + columns >= len(diagrams):
            panel.set_xlabel("confidence")
            panel.tick_params(labelbottom=True)
        if place % columns == 0:
            panel.set_ylabel("accuracy")
    return figure


def confidence_boxes(boxes: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """Plot confidence by class: boxes from 25 to 75 %, lines at the median, whiskers from 5 to 95 %.

    Args:
        boxes: By class, the 5, 25, 50, 75 and 95 % quantiles; further values are ignored.
        title: The title of the figure.
    """
    figure, axes = canvas(size=(max(3.0, 0.42 * len(boxes) + 1.2), 3.0))
    panel = axes[0, 0]
    names = ("whislo", "q1", "med", "q3", "whishi")
    stats = [{"label": name, **dict(zip(names, box[:5])), "fliers": []} for name, box in boxes.items()]
    panel.bxp(
        stats,
        showfliers=False,
        patch_artist=True,
        widths=0.6,
        boxprops={"facecolor": PALETTE[5], "edgecolor": PALETTE[0]},
        medianprops={"color": INK, "linewidth": 1.4},
        whiskerprops={"color": PALETTE[0]},
        capprops={"color": PALETTE[0]},
    )
    panel.set(ylabel="confidence")
    panel.set_title(title, fontsize=9)
    panel.set_ylim(top=1.02)
    if max(map(len, boxes), default=0) > 3:
        panel.tick_params(axis="x", rotation=45)
    return figure


def risk_coverage(curves: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot the error rate among the most confident predictions against their fraction.

    Args:
        curves: By name of the network, `coverage`, `risk` and, if known, `area`.
    """
    figure, axes = canvas()
    panel = axes[0, 0]
    for name, curve in curves.items():
        area = curve.get("area")
        label = name if area is None else f"{name} (area {area:.4f})"
        panel.plot(_floats(curve["coverage"]), _floats(curve["risk"]), label=label, linewidth=1.6)
    panel.set(xlabel="coverage", ylabel="risk", xlim=(0, 1))
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=7, frameon=False)
    return figure


def _floats(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
