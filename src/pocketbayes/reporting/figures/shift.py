"""Measures under shift: by severity of corruption, angle of rotation, or noise in dB."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"accuracy": "accuracy", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "entropy": "entropy"}
COLUMNS = 3
LABELS = {"severity": "severity", "degrees": "rotation (degrees)", "db": "signal to noise (dB)"}
Rows = Sequence[Mapping[str, Any]]


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
    columns = min(count, COLUMNS)
    figure, axes = canvas(math.ceil(count / columns), columns, size=(3.0, 2.5), sharex=True)
    for panel in axes.flat[count:]:
        panel.set_axis_off()
    for panel, name in zip(axes.flat, known):
        for label, one in rows.items():
            panel.plot(*_points(one, x, name), marker="o", markersize=3, linewidth=1.5, label=label)
        panel.set_title(MEASURES[name], fontsize=9)
    if apart:
        _right_and_wrong(axes.flat[count - 1], rows, x)
    for panel in axes.flat[max(count - columns, 0) : count]:
        panel.set_xlabel(LABELS.get(x, x))
        panel.tick_params(labelbottom=True)
    if len(rows) > 1 and known:
        axes[0, 0].legend(fontsize=7, frameon=False)
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
