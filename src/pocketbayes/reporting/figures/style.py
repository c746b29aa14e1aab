"""A common style for all figures: colours that colour-blind readers can distinguish, no pyplot state, atomic files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#000000")
"""Okabe and Ito's colours, the strongest first."""
INK, GRID = "#222222", "#DDDDDD"
FORMATS = (".png", ".svg", ".pdf")


def canvas(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.2, 3.2), **options: Any
) -> tuple[Figure, Any]:
    """Return an empty figure of `rows` x `columns` panels of `size` inches, and its array of axes.

    The axes are always a two-dimensional array: `axes[row, column]`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color=GRID, linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(colors=INK, labelsize=8)
        panel.xaxis.label.set_fontsize(9)
        panel.yaxis.label.set_fontsize(9)
        panel.set_prop_cycle(color=PALETTE)
    return figure, axes


def grid(count: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Any]]:
    """Return a figure of `count` panels in rows of `columns`, and the panels in order."""
    figure, axes = canvas(math.ceil(count / columns), columns, size, **options)
    for panel in axes.flat[count:]:
        panel.set_axis_off()
    return figure, list(axes.flat[:count])


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure as .png, .svg or .pdf by the suffix of its name, atomically."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"cannot draw {path.name}: the name of a figure must end in one of {', '.join(FORMATS)}")
    kind = path.suffix[1:].lower()
    # Without the date the same numbers give the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150, metadata=metadata))
    return path
