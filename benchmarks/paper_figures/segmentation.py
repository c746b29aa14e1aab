"""Segmentation: images of predictions with their uncertainty, and IoU per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketbayes.reporting.figures.style import INK, PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

VOID = "#FFFFFF"


def segmentation_row(
    image: NDArray[np.float64],
    truth: NDArray[np.int64],
    answers: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]],
    classes: int,
) -> Figure:
    """Draw image and truth, then a column per network with its prediction above and the entropy of each pixel below.

    Args:
        image: (height, width, 3) in 0..1.
        truth: (height, width) labels; values outside 0..classes - 1 are void and drawn white.
        answers: Labels and entropies in nats, each (height, width), by name of the network.
        classes: The number of classes.
    """
    from matplotlib.colors import BoundaryNorm, ListedColormap

    height, width = truth.shape
    figure, axes = canvas(2, 1 + len(answers), size=(1.9, 1.9 * height / width + 0.25))
    for panel in axes.flat:
        panel.set_axis_off()
        panel.grid(visible=False)
    colours = ListedColormap(_class_colours(classes)).with_extremes(bad=VOID)
    borders = BoundaryNorm(np.arange(classes + 1) - 0.5, classes)
    by_class = {"cmap": colours, "norm": borders, "interpolation": "nearest"}
    known = np.ma.masked_where((truth < 0) | (truth >= classes), truth)
    axes[0, 0].imshow(image)
    axes[0, 0].set_title("image")
    axes[1, 0].imshow(known, **by_class)
    axes[1, 0].set_title("truth")
    top = max(float(entropy.max()) for _, entropy in answers.values())
    for column, (name, (labels, entropy)) in enumerate(answers.items(), 1):
        axes[0, column].imshow(labels, **by_class)
        axes[0, column].set_title(name)
        shown = axes[1, column].imshow(entropy, cmap="magma", vmin=0, vmax=top)
        axes[1, column].set_title("entropy")
    bar = figure.colorbar(shown, ax=axes[1, -1], fraction=0.05, pad=0.02)
    bar.ax.tick_params(labelsize=7, colors=INK)
    return figure


def iou_bars(iou: Mapping[str, Sequence[float]], class_names: Sequence[str]) -> Figure:
    """Draw a bar per class and network; a dotted line is the network's mean.

    Args:
        iou: One value per class, by network.
        class_names: One name per class.
    """
    figure, axes = canvas(size=(max(4.2, 0.62 * len(class_names)), 2.8))
    panel = axes[0, 0]
    place, each = np.arange(len(class_names)), 0.8 / len(iou)
    for number, (name, values) in enumerate(iou.items()):
        colour = PALETTE[number % len(PALETTE)]
        panel.bar(place + (number - (len(iou) - 1) / 2) * each, values, each, color=colour, label=name)
        panel.axhline(float(np.mean(values)), color=colour, linewidth=0.9, linestyle=":")
    panel.set_xticks(place, class_names, rotation=30, ha="right")
    panel.grid(visible=False, axis="x")
    panel.set(ylabel="IoU", ylim=(0, 1))
    figure.legend(loc="outside upper center", ncols=len(iou), fontsize=7, frameon=False)
    return figure


def _class_colours(classes: int) -> list[tuple[float, ...]]:
    """Return one colour per class, with distinct neighbours."""
    from matplotlib import colormaps

    table = colormaps["tab20"]
    return [table((7 * number) % 20) for number in range(classes)]
