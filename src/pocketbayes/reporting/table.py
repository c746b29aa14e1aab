"""Tables for a terminal: one row per network, one column per measure, the best in bold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = (
    *("accuracy", "miou", "nll", "calibrated_nll", "ece", "brier", "epistemic_share"),
    *("rmse", "mae", "log_likelihood", "coverage95"),
)
"""The measures of `evaluate` that a table shows."""
HEADINGS = {
    "miou": "mIoU",
    "nll": "NLL",
    "calibrated_nll": "calibrated NLL",
    "epistemic_share": "epistemic",
    "ece": "ECE",
    "brier": "Brier",
    "rmse": "RMSE",
    "mae": "MAE",
    "log_likelihood": "log likelihood",
    "coverage95": "in 95 %",
}
PERCENT = frozenset({"accuracy", "miou", "coverage95", "corrupted", "epistemic_share"})
HIGH_IS_GOOD = frozenset({"accuracy", "miou", "log_likelihood"})
LOW_IS_GOOD = frozenset({"nll", "calibrated_nll", "ece", "brier", "rmse", "mae", "values", "bytes"})
LARGEST = 1e300
EIGHTHS = " ▏▎▍▌▋▊▉█"


def shown(measures: Mapping[str, float]) -> dict[str, float]:
    """Return the measures that a table shows."""
    return {name: measures[name] for name in SHOWN if name in measures}


def measured_on(examples: int, split: str, samples: int) -> str:
    """Return what figures were measured on, for a title."""
    return f"{examples:,} {split} examples, {samples} {'sample' if samples == 1 else 'samples'} each"


def table(rows: Sequence[Mapping[str, Any]], title: str | None = None, best: Mapping[str, Any] | None = None) -> Table:
    """Make a table whose columns are all keys of the rows, in order; missing numbers are blank.

    Args:
        rows: The rows.
        title: The title above the table.
        best: The bold value of each column; None for the best one.
    """
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, header_style="bold cyan")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if best is None:
        best = {name: best_of(name, rows) for name in columns}
    for name in columns:
        words = any(isinstance(row.get(name), str) for row in rows)
        made.add_column(HEADINGS.get(name, name), justify="left" if words else "right", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(name, row.get(name), best.get(name)) for name in columns))
    return made


def write(name: str, value: Any) -> str:
    """Format a value by the name of its column."""
    if value is None:
        return ""
    if not _is_finite(value):
        return str(value)
    if name in PERCENT:
        return f"{100 * value:.2f} %"
    if name == "bytes" or name.endswith("_bytes"):
        return file_size(value)
    if name == "seconds":
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def file_size(size: int) -> str:
    """Format a size: 812 B, 34.5 kB, 1.2 MB."""
    if size < 1000:
        return f"{size} B"
    value = size / 1000
    units = ["kB", "MB", "GB", "TB"]
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.1f} {units[0]}"


def bar(fraction: float, width: int) -> str:
    """Return a bar of `width` characters, filled to an eighth of a character."""
    eighths = round(min(max(0.0, fraction), 1.0) * width * 8)  # NaN gives an empty bar
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def best_of(name: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the best value of a column; None for a single row or if no direction is better."""
    if len(rows) < 2:
        return None
    values = [row[name] for row in rows if _is_finite(row.get(name))]
    if name in HIGH_IS_GOOD:
        return max(values, default=None)
    return min(values, default=None) if name in LOW_IS_GOOD else None


def _is_finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _cell(name: str, value: Any, best: Any) -> Any:
    from rich.text import Text

    return Text(write(name, value), "bold green" if best is not None and value == best else "")
