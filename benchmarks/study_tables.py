"""Tables of studies (`pocketbayes reproduce`): a row a method, a column a measure, means over seeds."""

from __future__ import annotations

import statistics

from table_parts import Group, Result, Table, Tables, mean

MEASURES = {
    "accuracy": ("accuracy", 100, 2),
    "miou": ("mean IoU", 100, 1),
    "nll": ("NLL", 1, 3),
    "ece": ("ECE", 1, 3),
    "brier": ("Brier", 1, 3),
    "corruption accuracy": ("corrupted", 100, 1),
}
"""By key: the column's head, a factor, digits."""


def study(result: Result) -> Table:
    """Everything that a study of a classifier measures; times of CPU over those of the row "map"."""
    rows = rows_of(result)
    first = next(iter(rows.values()))[0]
    shown = {key: look for key, look in MEASURES.items() if key in first}
    outside = [key for key in first if key.startswith("auroc ")]
    head = ["", *(name for name, _, _ in shown.values()), *(f"AUROC, {key[6:]}" for key in outside)]
    head += ["bytes", "values", "training, x map", "prediction, x map", "seeds"]
    lines = []
    for name, seeds in rows.items():
        cells = [f"{scale * mean(seeds, key):.{digits}f}" for key, (_, scale, digits) in shown.items()]
        cells += [f"{mean(seeds, key):.3f}" for key in outside]
        cells += [f"{round(mean(seeds, key)):,}" for key in ("bytes", "values")]
        cells += [ratio(seeds, rows.get("map"), key) for key in ("train_seconds", "predict_seconds")]
        lines.append([name, *cells, str(len(seeds))])
    return head, lines


def regression(results: Result) -> Table:
    """RMSE and log-likelihood of every method on several sets, and the bytes on the first."""
    sets = {name.partition("-")[2]: rows_of(result) for name, result in results.items()}
    methods = list(dict.fromkeys(method for rows in sets.values() for method in rows))
    lines = []
    for method in methods:
        found = [rows.get(method, []) for rows in sets.values()]
        cells = [f"{mean(seeds, 'rmse'):.2f} / {mean(seeds, 'log_likelihood'):.2f}" if seeds else "" for seeds in found]
        sizes = [round(mean(seeds, "bytes")) for seeds in found if seeds]
        lines.append([method, *cells, f"{sizes[0]:,}"])
    heads = [f"{name}, {min(map(len, rows.values()))} splits" for name, rows in sets.items()]
    return ["RMSE / log-likelihood", *heads, f"bytes, {next(iter(sets))}"], lines


def rows_of(result: Result) -> dict[str, Group]:
    """The figures of every seed by row."""
    return {name: list(row["seeds"].values()) for name, row in result["rows"].items() if row["seeds"]}


def ratio(seeds: Group, reference: Group | None, key: str) -> str:
    """Of medians; empty where one of them was not taken."""
    ours, theirs = ([figures[key] for figures in group if key in figures] for group in (seeds, reference or []))
    return f"{statistics.median(ours) / statistics.median(theirs):.1f}" if ours and theirs else ""


TABLES: Tables = {
    **{name: (name, study) for name in ("digits", "mnist-lenet300", "mnist-lenet5", "cifar10-resnet20", "camvid")},
    "uci": ("uci-*", regression),
}
