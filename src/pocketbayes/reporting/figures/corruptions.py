"""A contact sheet of one image under all corruptions and severities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbayes.reporting.figures.style import INK, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCKS = 2
WIDTH, GAP, LABEL, HEAD = 0.78, 0.04, 0.95, 0.3
"""Sizes in inches: an image, the gap between images, a name, the line of severities."""


def contact_sheet(pictures: Mapping[str, Sequence[NDArray[np.uint8]]], original: NDArray[np.uint8]) -> Figure:
    """Draw two columns of corruptions, with a row of severities each; the original image comes last."""
    severities = max(len(row) for row in pictures.values())
    lines = -(-(len(pictures) + 1) // BLOCKS)
    height = WIDTH * original.shape[0] / original.shape[1]
    block_width = LABEL + severities * (WIDTH + GAP)
    size = np.array([BLOCKS * block_width + GAP, HEAD + lines * (height + GAP) + GAP])
    figure, axes = canvas(lines, BLOCKS * severities)
    figure.set_layout_engine("none")
    figure.set_size_inches(*size)
    for panel in axes.flat:
        panel.set_visible(False)

    def write(words: str, x: float, y: float, side: str) -> None:
        figure.text(x / size[0], y / size[1], words, ha=side, va="center", fontsize=8, color=INK)

    for place, (name, row) in enumerate([*pictures.items(), ("original", [original])]):
        block, line = divmod(place, lines)
        left, bottom = block * block_width + LABEL, size[1] - HEAD - (line + 1) * (height + GAP)
        write(name.replace("_", "\n"), left - 0.08, bottom + height / 2, "right")
        if line == 0:
            write("severity", left - 0.08, size[1] - HEAD / 2, "right")
        for column, picture in enumerate(row):
            x = left + column * (WIDTH + GAP)
            panel = axes[line, block * severities + column]
            panel.set_visible(True)
            panel.set_position([x / size[0], bottom / size[1], WIDTH / size[0], height / size[1]])
            _draw(panel, picture)
            if line == 0:
                write(str(column + 1), x + WIDTH / 2, size[1] - HEAD / 2, "center")
    return figure


def _draw(panel: Any, picture: NDArray[np.uint8]) -> None:
    gray = picture.ndim == 2 or picture.shape[-1] == 1
    pixels = picture.reshape(picture.shape[:2]) if gray else picture
    panel.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
    panel.grid(False)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
