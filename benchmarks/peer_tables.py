"""Tables of peers.json and growth.json, for tables.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from table_parts import Result, Table, Tables

PEERS = ("bayesian-torch", "torch-uncertainty", "blitz", "ivon", "fastbnns")
"""The libraries that draw the weights of a mean-field posterior."""
OURS = "pocketbayes"


def multiples(section: str) -> Callable[[Result], Table]:
    """Return a table with a row per library and a column per model."""

    def table(result: Result) -> Table:
        models = result["models"]
        names = dict.fromkeys(name for part in models.values() for name in part[section])
        names |= dict.fromkeys(
            key.rpartition(": ")[0]
            for part in models.values()
            for key in part["not run"]
            if key.endswith(f": {section}")
        )
        rows = [[name, *(cell(part[section].get(name)) for part in models.values())] for name in names]
        return [section, *(f"{name}, batch {part['batch']}" for name, part in models.items())], rows

    return table


def cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def absent(result: Result) -> Table:
    """Return the combinations that do not run, with the error."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for model, part in result["models"].items():
        for what, why in part["not run"].items():
            reasons.setdefault((what, why), []).append(model)
    rows = [[what, ", ".join(models), why.replace("|", "/")] for (what, why), models in reasons.items()]
    return ["does not run", "models", "why"], rows or [["nothing", "", ""]]


def bars(result: Result) -> Table:
    """Return our time relative to the fastest peer's, and the gain of prediction without samples."""
    questions: dict[str, Callable[[Result], float | None]] = {
        "training step, ours / fastest peer": lambda part: over_fastest(part["training step"]),
        "30 samples, ours / fastest peer": lambda part: over_fastest(part["30 samples"]),
        "moments, logits only, ours / fastbnns": lambda part: over(
            part["no samples"], f"{OURS}, moments, logits only", "fastbnns, moments, logits only"
        ),
        "training step by moments, ours / fastbnns": lambda part: over(
            part["training step"], f"{OURS}, moments", "fastbnns, moments"
        ),
        "last-layer Laplace, 30 samples, ours / laplace-torch": lambda part: over(
            part["30 samples"], f"{OURS}, last-layer Laplace", "laplace-torch, last layer"
        ),
        "last-layer Laplace, linear, ours / laplace-torch": lambda part: over(
            part["no samples"], f"{OURS}, last-layer Laplace, linear", "laplace-torch, last layer, linear"
        ),
        "times faster than the fastest peer's 30 samples: moments": lambda part: gain(part, "moments"),
        "times faster than the fastest peer's 30 samples: linear": lambda part: gain(part, "linear"),
    }
    models = result["models"]
    rows = [[name, *(cell(ask(part)) for part in models.values())] for name, ask in questions.items()]
    return ["", *models], rows


def fastest(times: Mapping[str, float]) -> float:
    return min(value for name, value in times.items() if name.startswith(PEERS) and "moments" not in name)


def over_fastest(times: Mapping[str, float]) -> float:
    return times[OURS] / fastest(times)


def over(times: Mapping[str, float], ours: str, theirs: str) -> float | None:
    return times[ours] / times[theirs] if ours in times and theirs in times else None


def gain(part: Result, how: str) -> float | None:
    ours = part["no samples"].get(f"{OURS}, {how}")
    return fastest(part["30 samples"]) / ours if ours else None


def growth(result: Result) -> Table:
    """Return a row per curve: its ends, and the exponents of the full curve and of its last three points."""
    units = {"seconds": " s", "megabytes": " MB"}
    rows = []
    for size, part in result["sweeps"].items():
        for cost, curves in part["costs"].items():
            for name, curve in curves.items():
                ends = [f"{curve['values'][end]:.3g}{units[cost]}" for end in (0, -1)]
                exponents = [f"{curve[key]:.2f}" for key in ("exponent", "exponent, last three")]
                span = f"{part['places'][0]:,} to {part['places'][-1]:,}"
                rows.append([f"{size}: {name} ({part['conditions']})", span, *ends, *exponents])
    return ["variable", "range", "cost at the start", "cost at the end", "exponent", "exponent, last three"], rows


def memory_format(result: Result) -> Table:
    first = next(iter(result["rows"].values()))
    ways = [key for key in first if ", " in key]
    rows = [[name, str(row["batch"]), *(f"{row[way]:.2f}" for way in ways)] for name, row in result["rows"].items()]
    return ["channels_last relative to the default format", "batch", *ways], rows


TABLES: Tables = {
    "peers-step": ("peers", multiples("training step")),
    "peers-samples": ("peers", multiples("30 samples")),
    "peers-no-samples": ("peers", multiples("no samples")),
    "peers-absent": ("peers", absent),
    "peers-bars": ("peers", bars),
    "growth": ("growth", growth),
    "memory-format": ("memory-format", memory_format),
}
