"""The printed results of `evaluate`: tables, means over seeds, and significance tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketbayes.reporting.table import HEADINGS, PERCENT, best_of, measured_on, shown, table

if TYPE_CHECKING:
    from rich.table import Table

LEVEL = 0.05
MOST_PAIRS = 3
"""With more pairs, only those with the network of lowest NLL are printed; JSON has all of them."""
TOLD = ("accuracy", "nll")
SCORE = "entropy"
LEVELS = {"noise": "db", "rotation": "degrees"}
"""Shifts with levels, and the names of the levels."""

Document = Mapping[str, Any]


def summary_table(results: Sequence[Document], comparisons: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row per network; significantly best values and the smallest file are bold."""
    rows = [_summary(result) for result in results]
    best = {name: best_of(name, rows) for name in ("values", "bytes")}
    for measure in ("accuracy", "nll", "brier"):
        for place in range(len(rows)):
            won = [row for row in comparisons if row["measure"] == measure and row["better"] == place]
            if len(won) == len(rows) - 1 > 0:
                best[measure] = rows[place][measure]
    datasets = dict.fromkeys(
        f"{result['data']['name']}, {measured_on(result['examples'], result['split'], result['samples'])}"
        for result in results
    )
    return table(rows, title="; ".join(datasets), best=best)


def shift_tables(results: Sequence[Document]) -> list[Table]:
    """Return one table per shift, with its first, middle and last level."""
    tables = []
    for shift, level in LEVELS.items():
        found = [(result, result.get("shift", {}).get(shift)) for result in results]
        rows = [
            {"network": result["network"], level: line[level], **shown(line), "entropy": line["entropy"]}
            for result, lines in found
            if lines
            for line in (lines[0], lines[len(lines) // 2], lines[-1])
        ]
        if rows:
            tables.append(table(rows, title=f"{shift}, three levels", best={}))
    return tables


def seeds_table(results: Sequence[Document], groups: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row per recipe: the mean over seeds and half the width of the 95 % interval."""
    rows = []
    for group in groups:
        first = results[group["networks"][0]]
        row = {"recipe": f"{first['method']} · {first['model']}", "seeds": len(group["networks"])}
        for measure, interval in group["measures"].items():
            scale = 100 if measure in PERCENT else 1
            half = scale * (interval["high"] - interval["mean"])
            digits = 2 if measure in PERCENT else 4
            unit = " %" if measure in PERCENT else ""
            row[measure] = f"{scale * interval['mean']:.{digits}f} ± {half:.{digits}f}{unit}"
        rows.append(row)
    return table(rows, title="mean over seeds ± half of the 95 % interval", best={})


def sentences(
    results: Sequence[Document],
    comparisons: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    tests: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return a sentence per comparison, except between seeds of one recipe."""
    recipe = {place: number for number, group in enumerate(groups) for place in group["networks"]}
    told = [
        row
        for row in comparisons
        if row["measure"] in TOLD and recipe.get(row["first"], -1) != recipe.get(row["second"], -2)
    ]
    pairs = {(row["first"], row["second"]) for row in told}
    if len(pairs) > MOST_PAIRS:
        lowest = min({place for pair in pairs for place in pair}, key=lambda place: results[place]["measures"]["nll"])
        told = [row for row in told if lowest in (row["first"], row["second"])]
    return [*(_sentence(results, row) for row in told), *(_anova_sentence(test) for test in tests)]


def _summary(result: Document) -> dict[str, Any]:
    row: dict[str, Any] = {"network": result["network"], **shown(result["measures"])}
    for name, found in result.get("ood", {}).items():
        if SCORE in found["scores"]:
            row[f"AUROC {name}"] = found["scores"][SCORE]["auroc"]
    means = result.get("shift", {}).get("corruptions_mean", {})
    if "of 15" in means:
        row["corrupted"] = means["of 15"]["accuracy"]
    if "humans" in result:
        row |= {"to humans": result["humans"]["total_variation"]}
    return {**row, "values": result["census"]["values"], "bytes": result["bytes"]}


def _sentence(results: Sequence[Document], row: Mapping[str, Any]) -> str:
    measure = HEADINGS.get(row["measure"], row["measure"])
    first, second = (str(results[row[side]]["network"]) for side in ("first", "second"))
    percent = row["measure"] in PERCENT
    low, high = sorted((abs(row["low"]), abs(row["high"])))
    correction = f", corrected for {row['pairs']} pairs" if row["pairs"] > 1 else ""
    test = f"{row['test']}, {_p(row['p'])}{correction}"
    if row["better"] is None:
        apart = f"{_size(abs(row['difference']), percent)}{' points' * percent} apart"
        return f"{measure}: no difference shown between {first} and {second} ({apart}; {test})"
    winner, loser = (first, second) if row["better"] == row["first"] else (second, first)
    interval = f"{_size(low, percent)} to {_size(high, percent)}" if row["low"] * row["high"] > 0 else "touches 0"
    by = _size(abs(row["difference"]), percent)
    unit = " points" if percent else ""
    return f"{measure}: {winner} is better than {loser} by {by}{unit} (95 % interval {interval}; {test})"


def _anova_sentence(test: Mapping[str, Any]) -> str:
    measure = HEADINGS.get(test["measure"], test["measure"])
    differs = "differs between recipes" if test["p"] < LEVEL else "no difference shown between recipes"
    ratio = f"F({test['between']}, {test['within']}) = {test['f']:.2f}"
    return f"{measure} over seeds: {differs} (one-way ANOVA, {ratio}, {_p(test['p'])})"


def _size(value: float, percent: bool) -> str:
    return f"{100 * value:.2f}" if percent else f"{value:.4f}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
