"""The tables of peers.json and growth.json, for tables.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from table_parts import Result, Table, Tables

PEERS = ("bayesian-torch", "torch-uncertainty", "blitz", "ivon", "fastbnns")
"""Those that draw the weights of a mean-field posterior."""
OURS = "pocketbayes"


def multiples(section: str) -> Callable[[Result], Table]:
    """A row a library, a column a model."""

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
    """What does not run, and what it says."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for model, part in result["models"].items():
        for what, why in part["not run"].items():
            reasons.setdefault((what, why), []).append(model)
    rows = [[what, ", ".join(models), why.replace("|", "/")] for (what, why), models in reasons.items()]
    return ["does not run", "models", "why"], rows or [["nothing", "", ""]]


def bars(result: Result) -> Table:
    """Our time over a peer's, the fastest where there are several, and what doing without samples gains over it."""
    questions: dict[str, Callable[[Result], float | None]] = {
        "training step, ours over the fastest peer's": lambda part: over_fastest(part["training step"]),
        "30 samples, ours over the fastest peer's": lambda part: over_fastest(part["30 samples"]),
        "moments, logits only, ours over fastbnns'": lambda part: over(
            part["no samples"], f"{OURS}, moments, logits only", "fastbnns, moments, logits only"
        ),
        "training step by moments, ours over fastbnns'": lambda part: over(
            part["training step"], f"{OURS}, moments", "fastbnns, moments"
        ),
        "last-layer Laplace, 30 samples, ours over laplace-torch's": lambda part: over(
            part["30 samples"], f"{OURS}, last-layer Laplace", "laplace-torch, last layer"
        ),
        "last-layer Laplace, linear, ours over laplace-torch's": lambda part: over(
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
    """A row a curve: its ends, and the exponents of all of it and of its far end."""
    units = {"seconds": " s", "megabytes": " MB"}
    rows = []
    for size, part in result["sweeps"].items():
        for cost, curves in part["costs"].items():
            for name, curve in curves.items():
                ends = [f"{curve['values'][end]:.3g}{units[cost]}" for end in (0, -1)]
                exponents = [f"{curve[key]:.2f}" for key in ("exponent", "exponent, last three")]
                span = f"{part['places'][0]:,} to {part['places'][-1]:,}"
                rows.append([f"{size}: {name} ({part['conditions']})", span, *ends, *exponents])
    return ["what grows", "from, to", "cost there", "and there", "exponent", "at the far end"], rows


def memory_format(result: Result) -> Table:
    first = next(iter(result["rows"].values()))
    ways = [key for key in first if ", " in key]
    rows = [[name, str(row["batch"]), *(f"{row[way]:.2f}" for way in ways)] for name, row in result["rows"].items()]
    return ["channels_last over the usual format", "batch", *ways], rows


TABLES: Tables = {
    "peers-step": ("peers", multiples("training step")),
    "peers-samples": ("peers", multiples("30 samples")),
    "peers-no-samples": ("peers", multiples("no samples")),
    "peers-absent": ("peers", absent),
    "peers-bars": ("peers", bars),
    "growth": ("growth", growth),
    "memory-format": ("memory-format", memory_format),
}
