"""The rows and columns of the leaderboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pocketbayes.reporting.runs import RunFolder, is_number
from pocketbayes.reporting.table import HEADINGS, HIGH_IS_GOOD, LOW_IS_GOOD, PERCENT, SHOWN, shown

OOD_SCORE = "entropy"
"""The score whose AUROC the leaderboard shows; the page has the others."""
ABOUT = {
    "accuracy": "Fraction of correct predictions",
    "miou": "Mean intersection over union of the classes",
    "nll": "Negative log-likelihood of the true label, in nats",
    "calibrated_nll": "NLL with a temperature fitted on one half of the data and measured on the other, both ways",
    "epistemic_share": "Mutual information over entropy: the share of uncertainty that comes from the weights",
    "ece": "Expected calibration error, 15 bins",
    "brier": "Brier score: squared error of the probabilities",
    "coverage95": "Fraction of targets inside the 95 % interval; 95 % is ideal",
    "bytes": "Size of the network's file",
    "values": "Numbers that the network stores: means and stds of weights, indices into a codebook, and parameters "
    "without a std",
    "flops": "Floating-point operations of one prediction, all passes; sparse products are counted as dense",
    "latency": "Time of one prediction, all passes, on the machine that made this report",
}


@dataclass(frozen=True)
class Column:
    """A column: its key, heading, number format, and whether higher or lower is better."""

    key: str
    title: str
    kind: Literal["percent", "number", "bytes", "count", "flops", "seconds"]
    better: Literal["high", "low"] | None
    about: str


def leaderboard(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return columns and rows as JSON values; a column appears if some run has its value.

    Best values are marked only among runs measured on the same data.
    """
    rows = [values_of(run) for run in runs]
    columns = [_column(key) for key in _ordered({key for row in rows for key in row})]
    groups = [measured_on(run) for run in runs]
    best = [
        [column.key for column in columns if len(runs) > 1 and _is_best(column, place, rows, groups)]
        for place in range(len(runs))
    ]
    return {
        "columns": [asdict(column) for column in columns],
        "rows": [
            {"run": place, "data": groups[place], "by": made_by(runs[place]), "values": row, "best": best[place]}
            for place, row in enumerate(rows)
        ],
    }


def values_of(run: RunFolder) -> dict[str, float]:
    """Return a run's values on the leaderboard."""
    values = dict(shown(run.measures))
    sets = run.evaluation.get("ood")
    for name, found in sets.items() if isinstance(sets, Mapping) else ():
        auroc = inside(found, "scores", OOD_SCORE, "auroc")
        if is_number(auroc):
            values[f"auroc {name}"] = auroc
    census = inside(run.evaluation, "census", "values")
    sizes = {
        "bytes": run.file.stat().st_size if run.file else run.evaluation.get("bytes"),
        "values": run.weights.get("values", census),
        "flops": run.cost.get("flops"),
        "latency": run.cost.get("latency"),
    }
    return values | {name: value for name, value in sizes.items() if is_number(value)}


def measured_on(run: RunFolder) -> str:
    """Return the names of data and split; empty if nothing was measured."""
    if not run.measures:
        return ""
    data = " ".join(str(part) for part in (run.data, run.evaluation.get("split")) if part)
    return f"{data}, {run.images:,} examples" if run.images else data


def made_by(run: RunFolder) -> str:
    """Describe a row: passes per prediction, epochs and seed of training, whether stds learned."""
    seed = run.recipe.get("seed", run.evaluation.get("seed"))
    parts = {
        "passes": run.evaluation.get("samples") if run.measures else None,
        "epochs": len(run.epochs) or None,
    }
    words = [f"{value} {name if value != 1 else name.rstrip('s')}" for name, value in parts.items() if value]
    if isinstance(seed, int):
        words.append(f"seed {seed}")
    if isinstance(learned := run.weights.get("learned"), bool):
        words.append("stds learned" if learned else "stds not learned")
    state = {"unfinished": run.is_unfinished, "not evaluated": not run.measures}
    return ", ".join([name for name, holds in state.items() if holds] + words)


def _ordered(keys: set[str]) -> list[str]:
    aurocs = sorted(key for key in keys if key.startswith("auroc "))
    return [key for key in (*SHOWN, *aurocs, "bytes", "values", "flops", "latency") if key in keys]


def _column(key: str) -> Column:
    if key.startswith("auroc "):
        name = key.removeprefix("auroc ")
        about = f"Area under the ROC curve for detecting {name} as out-of-distribution by {OOD_SCORE}"
        return Column(key, f"AUROC {name}", "percent", "high", about)
    kinds: dict[str, Any] = {"bytes": "bytes", "values": "count", "flops": "flops", "latency": "seconds"}
    better: Literal["high", "low"] | None = None
    if key in HIGH_IS_GOOD:
        better = "high"
    elif key in LOW_IS_GOOD or key in ("flops", "latency", "calibrated_nll"):
        better = "low"
    titles = {"flops": "FLOPs", "calibrated_nll": "calibrated NLL", "epistemic_share": "epistemic share"}
    title = titles.get(key, HEADINGS.get(key, key))
    kind = kinds.get(key, "percent" if key in PERCENT or key == "epistemic_share" else "number")
    return Column(key, title, kind, better, ABOUT.get(key, title))


def _is_best(column: Column, place: int, rows: Sequence[Mapping[str, float]], groups: Sequence[str]) -> bool:
    if column.better is None or column.key not in rows[place]:
        return False
    rivals = [row[column.key] for row, group in zip(rows, groups) if group == groups[place] and column.key in row]
    best = (max if column.better == "high" else min)(rivals)
    return min(rivals) < max(rivals) and rows[place][column.key] == best


def inside(tree: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree
