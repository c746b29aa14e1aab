"""Figures of evaluations: calibration, confidence by class, risk and coverage, detection scores, and shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas, grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS, SHIFT_COLUMNS = 4, 3
MEASURES = {"accuracy": "accuracy", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "entropy": "entropy"}
LABELS = {"severity": "severity", "degrees": "rotation (degrees)", "db": "signal to noise (dB)"}
Rows = Sequence[Mapping[str, Any]]


def reliability(diagrams: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Figure:
    """Plot accuracy by confidence, one panel per network; bars end at the accuracy, the orange part is the gap.

    Args:
        diagrams: By name of the network, `confidence`, `accuracy` and `count` of each bin; empty bins None or NaN.
    """
    columns = min(len(diagrams), COLUMNS)
    figure, panels = grid(len(diagrams), columns, size=(2.5, 2.6), sharex=True, sharey=True)
    for place, (panel, (name, diagram)) in enumerate(zip(panels, diagrams.items())):
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


def ood_histograms(
    histograms: Mapping[str, Mapping[str, Any]], inside: str = "own data", outside: str = "other data"
) -> Figure:
    """Draw the distribution of a score on in- and out-of-distribution data, one panel per network.

    Args:
        histograms: By name of the network, `edges` of the bins, counts `inside` and `outside`, and the `score`'s name.
        inside: The label of the in-distribution data.
        outside: The label of the out-of-distribution data.
    """
    figure, panels = grid(len(histograms), min(len(histograms), COLUMNS), size=(2.7, 2.3))
    for place, (panel, (name, histogram)) in enumerate(zip(panels, histograms.items())):
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


def shift_curves(rows: Mapping[str, Rows], x: str = "severity") -> Figure:
    """Plot every measure against the shift, one line per network, and the entropy of right and wrong predictions.

    Args:
        rows: By name of the network, one row of measures per step of the shift.
        x: The name of the step: "severity", "degrees" or "db".
    """
    every = [row for one in rows.values() for row in one]
    known = [name for name in MEASURES if any(row.get(name) is not None for row in every)]
    apart = any(row.get("entropy_right") is not None for row in every)
    count = max(len(known) + apart, 1)
    columns = min(count, SHIFT_COLUMNS)
    figure, panels = grid(count, columns, size=(3.0, 2.5), sharex=True)
    for panel, name in zip(panels, known):
        for label, one in rows.items():
            panel.plot(*_points(one, x, name), marker="o", markersize=3, linewidth=1.5, label=label)
        panel.set_title(MEASURES[name], fontsize=9)
    if apart:
        _right_and_wrong(panels[-1], rows, x)
    for panel in panels[-columns:]:
        panel.set_xlabel(LABELS.get(x, x))
        panel.tick_params(labelbottom=True)
    if len(rows) > 1 and known:
        panels[0].legend(fontsize=7, frameon=False)
    return figure


def _right_and_wrong(panel: Any, rows: Mapping[str, Rows], x: str) -> None:
    for place, one in enumerate(rows.values()):
        colour = PALETTE[place % len(PALETTE)]
        panel.plot(*_points(one, x, "entropy_right"), color=colour, linewidth=1.5)
        panel.plot(*_points(one, x, "entropy_wrong"), color=colour, linewidth=1.5, linestyle="--")
    panel.set_title("entropy: right (solid), wrong (dashed)", fontsize=9)


def _points(rows: Rows, x: str, measure: str) -> tuple[list[float], list[float]]:
    known = sorted((row[x], row[measure]) for row in rows if row.get(x) is not None and row.get(measure) is not None)
    return [point[0] for point in known], [point[1] for point in known]
