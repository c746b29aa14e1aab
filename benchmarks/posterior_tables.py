"""Tables of posteriors: what can be pruned, and what stds and draws cost."""

from __future__ import annotations

from typing import Any

from table_parts import Result, Table, Tables, grouped, mean

NAMES = {"vdp": "VDP++"}


def pruned(result: Result) -> Table:
    """Accuracy by the fraction of weights that are pruned, means over seeds."""
    rows, fractions = [], []
    for name, group in grouped(result["rows"]).items():
        curves = [row["accuracy by fraction pruned"] for row in group]
        fractions = [point["pruned"] for point in curves[0]][1:]
        means = [
            sum(100 * curve[place]["accuracy"] for curve in curves) / len(curves) for place in range(len(curves[0]))
        ]
        seeds = " / ".join(
            f"{100 * point['accuracy']:.1f}" for curve in curves for point in curve if point["pruned"] == 0.9
        )
        figures = [f"{100 * mean(group, 'accuracy'):.2f}", *(f"{value:.2f}" for value in means[1:]), seeds]
        rows.append(
            [NAMES.get(name, name), *figures, f"{mean(group, 'calibrated_nll'):.4f}", f"{mean(group, 'ood_auroc'):.3f}"]
        )
    head = [*(f"{100 * fraction:.0f} % pruned" for fraction in fractions), "seeds at 90 %"]
    return ["", "accuracy", *head, "calibrated NLL", "Fashion-MNIST AUROC"], rows


def titled(result: Result, prefix: str) -> dict[str, dict[str, Any]]:
    """The rows whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): row for name, row in result["rows"].items() if name.startswith(prefix)}


def curvature_cost(result: Result) -> Table:
    """CPU seconds and memory of stds from curvature."""
    rows = [
        [name, f"{row['weights']:,}", f"{row['cpu_seconds']:.0f}", f"{row['extra_peak_bytes'] / 1e9:.2f}"]
        for name, row in titled(result, "curvature, ").items()
    ]
    return ["", "weights", "CPU seconds", "GB beside the network"], rows


def draw_statistics(result: Result) -> Table:
    """Draws with the statistics in store and with their own."""
    rows = [
        [name, f"{100 * row['accuracy']:.1f}", *(f"{row[key]:.3f}" for key in ("nll", "calibrated_nll"))]
        for name, row in titled(result, "draws, ").items()
    ]
    return ["", "accuracy", "NLL", "calibrated NLL"], rows


def ivon_step(result: Result) -> Table:
    """Ratios of training steps to deterministic ones."""
    rows = [
        [name, *(f"{row['ratio'][key]:.2f}" for key in ("pocketbayes", "ivon-opt"))]
        for name, row in titled(result, "ivon step, ").items()
    ]
    return ["times a deterministic step", "`ivon`", "the package ivon-opt"], rows


def first_std(result: Result) -> Table:
    """Log-likelihood by first std and data set."""
    sets = dict.fromkeys(name.partition(": ")[0] for name in result["rows"])
    names = dict.fromkeys(name.partition(": ")[2] for name in result["rows"])
    rows = [[name, *(f"{result['rows'][f'{data}: {name}']['log_likelihood']:.2f}" for data in sets)] for name in names]
    return ["log-likelihood, validation data", *sets], rows


TABLES: Tables = {
    "pruned": ("pruned", pruned),
    "curvature-cost": ("posterior-cost", curvature_cost),
    "draw-statistics": ("posterior-cost", draw_statistics),
    "first-std": ("first-std", first_std),
    "ivon-step": ("posterior-cost", ivon_step),
}
