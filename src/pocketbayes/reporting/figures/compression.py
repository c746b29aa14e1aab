"""Quality against file size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketbayes.reporting.figures.style import PALETTE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rate_distortion(found: Mapping[str, Any], references: Mapping[str, float] | None = None) -> Figure:
    """Plot NLL and, if there is one, accuracy against file size.

    Args:
        found: The result of `Compressed.to_json`: `trials`, the `front` of the best, `chosen` and `before`.
        references: Bytes of other files to mark, by name.
    """
    measures = ["nll"] + (["accuracy"] if found["before"]["accuracy"] is not None else [])
    figure, axes = canvas(1, len(measures))
    for panel, measure in zip(axes[0], measures):
        _panel(panel, found, measure, references or {})
    axes[0, 0].legend(fontsize=7, frameon=False)
    return figure


def _panel(panel: Any, found: Mapping[str, Any], measure: str, references: Mapping[str, float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def points(trials: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
        return [trial["bytes"] / 1000 for trial in trials], [trial[measure] for trial in trials]

    coded = [trial for trial in found["trials"] if "lam" in trial["how"]]
    kept = [trial for trial in found["trials"] if "lam" not in trial["how"]]
    panel.plot(*points(found["front"]), color=PALETTE[6], linewidth=1, zorder=1, label="best for their size")
    panel.scatter(*points(kept), s=16, color=PALETTE[0], marker="s", label="the network's own storage")
    panel.scatter(*points(coded), s=16, color=PALETTE[1], label="coded weights")
    panel.scatter(*points([found["chosen"]]), s=90, facecolors="none", edgecolors=PALETTE[7], label="chosen")
    for name, size in references.items():
        panel.axvline(size / 1000, color=PALETTE[6], linewidth=0.8, linestyle=":")
        panel.annotate(name, (size / 1000, 1), xycoords=("data", "axes fraction"), rotation=90, fontsize=6, va="top")
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
