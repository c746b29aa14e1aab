"""Sparse training: accuracy against density, agreement of criteria, layer densities, the initial std."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
Curve = Mapping[float, Sequence[float]]
"""One value per seed, by position on the axis."""


def density_curves(
    measures: Mapping[str, Mapping[str, Curve]], dense: Mapping[str, Mapping[str, Sequence[float]]] | None = None
) -> Figure:
    """Draw a panel per metric: mean and range over seeds against density.

    Args:
        measures: Values of every seed by metric, method and density.
        dense: By measure and name, values of networks that keep all weights, as horizontal lines.
    """
    figure, axes = canvas(1, len(measures))
    for panel, (measure, curves) in zip(axes[0], measures.items()):
        _curves(panel, curves, "fraction of the weights present", measure)
        for name, values in (dense or {}).get(measure, {}).items():
            panel.axhspan(min(values), max(values), color=INK, alpha=0.12, linewidth=0)
            panel.axhline(float(np.mean(values)), color=INK, linestyle="--", linewidth=1.2, label=name)
    _legend(figure, axes)
    return figure


def overlap_matrices(matrices: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str]) -> Figure:
    """Draw the IoU of the weights that each pair of criteria would remove, one panel per time.

    Args:
        matrices: By time ("start", "end"), (criteria, criteria) numbers from 0 to 1.
        names: The names of the criteria.
    """
    figure, axes = canvas(1, len(matrices), size=(3.0, 3.3))
    for panel, (time, matrix) in zip(axes[0], matrices.items()):
        values = np.asarray(matrix, dtype=float)
        panel.imshow(values, cmap="viridis", vmin=0, vmax=1)
        for row, column in np.ndindex(*values.shape):
            ink = "black" if values[row, column] > 0.6 else "white"
            text = f"{values[row, column]:.2f}".removeprefix("0")
            panel.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
        first = panel is axes[0, 0]
        panel.set_xticks(range(len(names)), names, rotation=45, ha="right")
        panel.set_yticks(range(len(names)), names if first else [""] * len(names))
        panel.set_title(time, fontsize=9)
        panel.grid(visible=False)
    figure.colorbar(axes[0, -1].images[0], ax=axes[0].tolist(), shrink=0.7, label="IoU of what they remove")
    return figure


def overlap_over_training(steps: Sequence[int], pairs: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the IoU of the weights that two criteria would remove over training, one labelled line per pair.

    Args:
        steps: The steps of the measurements.
        pairs: One value per step, by pair of criteria.
    """
    figure, axes = canvas(size=(6.4, 3.4))
    panel = axes[0, 0]
    for place, (name, values) in enumerate(pairs.items()):
        style = "-" if place < len(PALETTE) else "--"
        colour = PALETTE[place % len(PALETTE)]
        marker = MARKERS[place % len(MARKERS)]
        every = max(len(steps) // 6, 1)
        panel.plot(
            steps, values, style, color=colour, linewidth=1.3, marker=marker, markersize=4, label=name,
            markevery=(place % every, every),
        )  # fmt: skip
    panel.set(xlabel="training step", ylabel="IoU of what they remove", ylim=(-0.03, 1.03))
    figure.legend(fontsize=7, frameon=False, loc="outside right center")
    return figure


def layer_densities(runs: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the fraction of present weights in every layer on a log scale, one line per run.

    Args:
        runs: By name of the run, the density of each layer in the network's order.
    """
    layers = list(next(iter(runs.values())))
    figure, axes = canvas(size=(max(3.2, 0.28 * len(layers) + 2.2), 4.0))
    panel = axes[0, 0]
    for place, (name, densities) in enumerate(runs.items()):
        values = [densities[layer] or math.nan for layer in layers]
        marker, colour = MARKERS[place % len(MARKERS)], PALETTE[place % len(PALETTE)]
        panel.plot(range(len(layers)), values, color=colour, linewidth=1, marker=marker, markersize=4, label=name)
    panel.set_yscale("log")
    _plain_ticks(panel.yaxis, [d for densities in runs.values() for d in densities.values() if d])
    panel.set_xticks(range(len(layers)), [layer.removesuffix(".weight") for layer in layers], rotation=60, ha="right")
    panel.set_ylabel("fraction present")
    panel.tick_params(axis="x", labelsize=7)
    figure.legend(fontsize=7, frameon=False, loc="outside upper center", ncols=min(len(runs), 4))
    return figure


def _curves(panel: Any, curves: Mapping[str, Curve], label: str, measure: str) -> None:
    for number, (name, curve) in enumerate(curves.items()):
        places = sorted(curve)
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        lows, highs = ([pick(curve[place]) for place in places] for pick in (min, max))
        panel.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
        means = [float(np.mean(curve[place])) for place in places]
        panel.plot(places, means, color=colour, linewidth=1.3, marker=marker, markersize=4, label=name)
    panel.set_xscale("log")
    _plain_ticks(panel.xaxis, [place for curve in curves.values() for place in curve])
    panel.set(xlabel=label, ylabel=measure)


def _plain_ticks(axis: Any, values: Sequence[float]) -> None:
    """Label ticks with plain numbers: the positions if there are few, else 1, 2 and 5 of every decade."""
    places = sorted(set(values))
    if len(places) > 6:
        low, high = (math.floor(math.log10(bound)) for bound in (places[0], places[-1]))
        places = [digit * 10**power for power in range(low, high + 1) for digit in (1, 2, 5)]
        places = [place for place in places if min(values) * 0.9 <= place <= max(values) * 1.1]
    axis.set_ticks(places, [f"{place:g}" for place in places])
    axis.set_ticks([], minor=True)


def _legend(figure: Figure, axes: Any) -> None:
    """Draw one legend for all panels."""
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, frameon=False, loc="outside upper center", ncols=min(len(labels), 4))
