"""Uncertainty without sampling: fidelity by layer, one pass against samples, pruning, noise, explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
Rows = Sequence[Mapping[str, float]]


def fidelity_by_layer(networks: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Draw a panel per network: propagated relative to sampled std by layer, on a log scale; 1 is exact.

    Args:
        networks: By network and propagation, the ratio for each layer in the network's order.
    """
    columns = min(len(networks), 3)
    rows = -(-len(networks) // columns)
    figure, axes = canvas(rows, columns, size=(4.0, 3.0), sharey=True)
    everything = [ratio for ways in networks.values() for ratios in ways.values() for ratio in ratios.values()]
    for panel, (network, ways) in zip(axes.flat, networks.items()):
        layers = list(next(iter(ways.values())))
        for number, (way, ratios) in enumerate(ways.items()):
            values = [ratios[layer] for layer in layers]
            panel.plot(range(len(layers)), values, linewidth=1.4, markersize=4, **_look(number), label=way)
        panel.axhline(1, color=INK, linewidth=0.8)
        _log_ratio_axis(panel, everything)
        panel.set_xticks(range(len(layers)), layers, rotation=45, ha="right")
        panel.set_title(network, fontsize=9)
    for panel in list(axes.flat)[len(networks) :]:
        panel.set_visible(False)
    for panel in axes[:, 0]:
        panel.set_ylabel("std over that of weight samples")
    _legend(figure, axes[0, 0])
    return figure


def pass_worth(networks: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Draw a row per network and a panel per metric against the number of weight samples.

    Moments and the delta method need one pass and are drawn as horizontal lines.

    Args:
        networks: The metrics by network and propagation ("5 samples", "moments", ...).
    """
    shown = {"nll": "NLL", "ece": "ECE", "auroc, entropy": "OOD AUROC"}
    figure, axes = canvas(len(networks), len(shown), size=(3.6, 2.5))
    for row, (network, ways) in zip(axes, networks.items()):
        counts = sorted(int(way.split()[0]) for way in ways if way.endswith(" samples"))
        others = [way for way in ways if not way.endswith(" samples")]
        for panel, (measure, label) in zip(row, shown.items()):
            values = [ways[f"{count} samples"][measure] for count in counts]
            panel.plot(counts, values, color=INK, marker="o", markersize=4, linewidth=1.4, label="weight samples")
            for number, way in enumerate(others):
                if measure in ways[way]:
                    style = ("-", "--", "-.", ":")[number % 4]
                    panel.axhline(ways[way][measure], color=PALETTE[number], linestyle=style, linewidth=1.4, label=way)
            panel.set_xscale("log")
            panel.set_xticks(counts, [str(count) for count in counts])
            panel.minorticks_off()
            panel.ticklabel_format(axis="y", useOffset=False)
            panel.set_ylabel(label)
            if row is axes[-1]:
                panel.set_xlabel("weight samples")
        row[0].set_title(network, loc="left", fontsize=9)
    _legend(figure, axes[0, 0])
    return figure


def pruning(curves: Mapping[str, Mapping[str, Sequence[Rows]]]) -> Figure:
    """Draw a panel per criterion: accuracy against the fraction pruned, mean and range over seeds.

    Args:
        curves: By criterion and method, for every seed the rows of `curves.pruning_curve`.
    """
    figure, axes = canvas(1, len(curves), size=(4.4, 3.2), sharey=True)
    methods = list(dict.fromkeys(method for group in curves.values() for method in group))
    for panel, (criterion, group) in zip(axes[0], curves.items()):
        for method, seeds in group.items():
            accuracy = 100 * np.array([[row["accuracy"] for row in rows] for rows in seeds])
            places = [100 * row["pruned"] for row in seeds[0]]
            look = _look(methods.index(method))
            panel.fill_between(places, accuracy.min(0), accuracy.max(0), color=look["color"], alpha=0.15, linewidth=0)
            panel.plot(places, accuracy.mean(0), linewidth=1.4, markersize=4, **look, label=method)
        panel.set(xlabel="weights pruned, %")
        panel.set_title(criterion, fontsize=9)
    axes[0, 0].set_ylabel("accuracy, %")
    _legend(figure, axes[0, 0])
    return figure


def noise(methods: Mapping[str, Rows]) -> Figure:
    """Draw accuracy and the relative variance of the predicted class against the signal-to-noise ratio.

    Args:
        methods: By method, the rows of `curves.noise_curve`.
    """
    figure, axes = canvas(1, 2, size=(4.4, 3.2))
    for number, (method, rows) in enumerate(methods.items()):
        places = [row["db"] for row in rows]
        look = {"linewidth": 1.4, "markersize": 4, **_look(number), "label": method}
        axes[0, 0].plot(places, [100 * row["accuracy"] for row in rows], **look)
        if any(row["variance"] for row in rows):
            axes[0, 1].plot(places, [row["relative variance"] for row in rows], **look)
    axes[0, 0].set(xlabel="signal-to-noise ratio, dB", ylabel="accuracy, %")
    axes[0, 1].set(xlabel="signal-to-noise ratio, dB", ylabel="variance over that at the lowest ratio")
    _legend(figure, axes[0, 0])
    return figure


def explanations(measures: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw a panel per metric (Infidelity, Sensitivity-max) and a box per method over images.

    Args:
        measures: By metric and method, one number per image.
    """
    figure, axes = canvas(1, len(measures), size=(3.8, 3.2))
    for panel, (measure, methods) in zip(axes[0], measures.items()):
        boxes = panel.boxplot(list(methods.values()), patch_artist=True, showfliers=False, widths=0.55)
        for box, colour in zip(boxes["boxes"], PALETTE):
            box.set(facecolor=colour, alpha=0.6)
        for line in boxes["medians"]:
            line.set_color(INK)
        panel.set_xticks(range(1, len(methods) + 1), list(methods))
        values = [value for each in methods.values() for value in each if value > 0]
        if max(values) > 10 * min(values):
            panel.set_yscale("log")
        panel.set_ylabel(measure)
    return figure


def _look(number: int) -> dict[str, Any]:
    return {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)]}


def _log_ratio_axis(panel: Any, values: Sequence[float]) -> None:
    panel.set_yscale("log")
    low, high = min(*values, 0.8), max(*values, 1.25)
    panel.set_ylim(low / 1.1, high * 1.1)
    coarse, fine = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10), (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4)
    ticks = [tick for tick in (fine if high < 2 * low else coarse) if low / 1.1 <= tick <= high * 1.1]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()


def _legend(figure: Figure, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=min(len(labels), 4))
