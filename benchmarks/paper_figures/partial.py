"""Partial Bayesian networks: metrics against rate, arithmetic and steps, and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLES = ("--", ":", "-.", (0, (4, 1, 1, 1, 1, 1)), (0, (1, 2)))


def measures_by_rate(
    curves: Mapping[str, Mapping[float, Sequence[float]]],
    others: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> Figure:
    """Draw a panel per metric: mean and range over seeds against the fraction of random weights.

    Args:
        curves: By metric and rate, one value per seed.
        others: By metric and name of another network, one value per seed; drawn as horizontal lines.
    """
    figure, axes = canvas(1, len(curves), size=(3.6, 3.0))
    handles: dict[str, Any] = {}
    for panel, (measure, points) in zip(axes[0], curves.items()):
        rates = sorted(points)
        percent = [100 * rate for rate in rates]
        (handles["PBN"],) = panel.plot(
            percent, [np.mean(points[rate]) for rate in rates], "o-", color=PALETTE[0], markersize=3.5, linewidth=1.4
        )
        panel.fill_between(
            percent,
            [min(points[rate]) for rate in rates],
            [max(points[rate]) for rate in rates],
            color=PALETTE[0],
            alpha=0.18,
            linewidth=0,
        )
        for place, (name, values) in enumerate((others or {}).get(measure, {}).items()):
            handles[name] = panel.axhline(
                float(np.mean(values)),
                color=PALETTE[1 + place % (len(PALETTE) - 1)],
                linestyle=STYLES[place % len(STYLES)],
                linewidth=1.2,
            )
        panel.set_xscale("log")
        panel.set_xticks([1, 5, 10, 20, 40, 100], ["1", "5", "10", "20", "40", "100"])
        panel.minorticks_off()
        panel.set(xlabel="random weights (%)", ylabel=measure)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), fontsize=7, frameon=False
    )
    return figure


def accuracy_by_flops(points: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw a point per network: accuracy against floating-point operations of its training, on a log scale.

    Args:
        points: Operations, and accuracy in percent, by name.
    """
    figure, axes = canvas(size=(4.6, 3.2))
    panel = axes[0, 0]
    for place, (name, (x, y)) in enumerate(points.items()):
        panel.plot(
            [x],
            [y],
            MARKERS[(place // len(PALETTE)) % len(MARKERS)],
            color=PALETTE[place % len(PALETTE)],
            markersize=6,
            linestyle="none",
            label=name,
        )
    panel.set_xscale("log")
    panel.margins(0.12)
    panel.set(xlabel="training FLOPs", ylabel="accuracy (%)")
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    return figure


def convergence(curves: Mapping[str, Sequence[Mapping[str, float]]], measures: Sequence[str]) -> Figure:
    """Draw a panel per metric and a line per network against optimiser steps.

    Args:
        curves: By name of the network, points with `step` and the measures.
        measures: The metrics to draw.
    """
    figure, axes = canvas(1, len(measures), size=(3.8, 3.0))
    for panel, measure in zip(axes[0], measures):
        for place, (name, points) in enumerate(curves.items()):
            panel.plot(
                [point["step"] for point in points],
                [point[measure] for point in points],
                marker=MARKERS[place % len(MARKERS)],
                markersize=3.5,
                linewidth=1.4,
                label=name,
            )
        panel.set(xlabel="steps", ylabel=measure)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7, frameon=False
    )
    return figure


def weight_distributions(layers: Mapping[str, Mapping[str, Any]], names: tuple[str, str]) -> Figure:
    """Draw a panel per layer: weights of two kinds of network as histograms of equal area, with the KS statistic.

    Args:
        layers: By name of the layer, the counts of both by their names, `low` and `high`, `ks statistic` and `p`.
        names: The names of the two kinds.
    """
    figure, axes = canvas(1, len(layers), size=(2.8, 2.5))
    for panel, (layer, found) in zip(axes[0], layers.items()):
        for place, name in enumerate(names):
            counts = np.asarray(found[name], dtype=float)
            edges = np.linspace(found["low"], found["high"], len(counts) + 1)
            density = counts / counts.sum() / (edges[1] - edges[0])
            look = {"fill": True, "alpha": 0.45} if place else {"linewidth": 1.2}
            panel.stairs(density, edges, color=PALETTE[place], label=name, **look)
        p = found["p"]
        panel.set_title(f"{layer}\nKS {found['ks statistic']:.3f}, p {'< 0.001' if p < 1e-3 else f'= {p:.3f}'}")
        panel.set(xlabel="weight", ylabel="density")
    axes[0, 0].legend(fontsize=7, frameon=False)
    return figure
