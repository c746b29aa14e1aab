"""Tables of propagation.json, vdp.json and pass-worth.json, for tables.py, and links to their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from table_parts import Result, Table, Tables

PRUNED = (0.5, 0.7, 0.9)
FIGURES = Path(__file__).parent.parent / "docs" / "figures"


def fidelity(result: Result) -> Table:
    rows = []
    for network, found in result.get("fidelity", {}).items():
        for way, values in found["agreement"].items():
            numbers = [values[key] for key in ("ratio", "ratio, predicted class", "spearman, predicted class")]
            rows.append([network, way, *(f"{number:.2f}" for number in numbers), f"{found['draws']:,}"])
    head = ["", "", "std / sampled std", "same, predicted class", "Spearman over images", "draws"]
    return head, rows


def layers(result: Result) -> Table:
    rows = [
        [network, way, ", ".join(f"{layer} {ratio:.2f}" for layer, ratio in found["layers"][way].items())]
        for network, found in result.get("fidelity", {}).items()
        for way in found["layers"]
    ]
    return ["", "", "median std / sampled std"], rows


def probabilities(result: Result) -> Table:
    ways = ("100 weight samples", "at the mean", "moments; sample", "moments; probit", "moments; taylor",
            "moments; sample; calibrated", "linear, predicted; sample", "linear, predicted; probit",
            "linear, margin; sample", "linear, covariance; sample", "linear, covariance; taylor",
            "linear, predicted; sample; calibrated")  # fmt: skip
    networks = result.get("fidelity", {})
    found = [network["probabilities"] for network in networks.values()]
    rows = [[way, *(f"{each[way]['nll']:.4f} / {each[way]['ece']:.4f}" for each in found)] for way in ways]
    return ["NLL / ECE", *networks], rows if networks else []


def memory(result: Result) -> Table:
    rows = []
    for name, found in result.get("memory", {}).items():
        for way, ratio in found["ratio"].items():
            rows.append([name, way, f"{found['bytes'][way] / 2**20:.1f}", f"{ratio:.2f}"])
    return ["", "", "peak, MiB", "ratio"], rows


def time(result: Result) -> Table:
    rows = []
    for name, found in result.get("time", {}).items():
        if name != "conditions":
            rows += [[name, way, f"{ratio:.2f}"] for way, ratio in found.items()]
    return ["", "", "cost relative to a deterministic pass or step"], rows


def cifar10(result: Result) -> Table:
    rows = []
    for name, row in result["rows"].items():
        if name.startswith("cifar10, ") or "vit" in name:
            cells = [f"{100 * row['accuracy']:.2f}", f"{row['nll']:.3f}", f"{row['ece']:.3f}"]
            curve = row.get("pruning", {}).get("magnitude")
            pruned = [_percent([_at(curve, "pruned", fraction)]) for fraction in PRUNED]
            noise = [f"{point['relative variance']:.2f}" for point in row["noise"]]
            rows.append([name, *cells, *pruned, " ".join(noise) if float(noise[0]) else ""])
    decibels = next((row["noise"] for row in result["rows"].values() if "noise" in row), [])
    places = " ".join(f"{point['db']:g}" for point in decibels)
    shares = [f"{100 * fraction:.0f} % pruned by size" for fraction in PRUNED]
    head = ["", "accuracy", "NLL", "ECE", *shares, f"relative variance at {places} dB"]
    return head, rows


def pass_worth(result: Result) -> Table:
    rows = []
    for network, ways in result.get("quality", {}).items():
        for way, row in ways.items():
            cells = [
                f"{100 * row['accuracy']:.2f}",
                f"{row['nll']:.4f}",
                f"{row['ece']:.4f}",
                f"{row['auroc, entropy']:.3f}",
            ]
            epistemic = row.get("auroc, epistemic")
            seconds = result.get("time", {}).get(network, {}).get(way)
            cells += ["" if epistemic is None else f"{epistemic:.3f}", "" if seconds is None else f"{seconds:.1f}"]
            rows.append([network, way, *cells])
    head = ["", "", "accuracy", "NLL", "ECE", "AUROC by entropy", "by epistemic", "cost in passes at the mean"]
    return head, rows


def _at(rows: list[dict[str, float]] | None, key: str, value: float) -> float | None:
    return next((row["accuracy"] for row in rows or [] if row[key] == value), None)


def _percent(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    return f"{statistics.fmean(known):.2f}" if known else ""


def figure(name: str, says: str) -> Callable[[Result], str]:
    """Return a link to a figure of propagation_figures.py."""
    drawn = (FIGURES / f"{name}.png").exists()
    return lambda result: f"![{says}](../figures/{name}.png)\n" if drawn else "Not drawn yet.\n"


TABLES: Tables = {
    "propagation-fidelity": ("propagation", fidelity),
    "propagation-layers": ("propagation", layers),
    "propagation-probabilities": ("propagation", probabilities),
    "propagation-memory": ("propagation", memory),
    "propagation-time": ("propagation", time),
    "vdp-cifar10": ("vdp", cifar10),
    "pass-worth": ("pass-worth", pass_worth),
    "figure-propagation-layers": (
        "propagation",
        figure("propagation-layers", "Propagated std relative to sampled std, layer by layer"),
    ),
    "figure-pass-worth": (
        "pass-worth",
        figure("pass-worth", "NLL, ECE and AUROC against the number of weight samples"),
    ),
    "figure-vdp-pruning": ("vdp-scratch", figure("vdp-pruning", "Accuracy against the fraction of weights pruned")),
    "figure-vdp-noise": (
        "vdp-scratch",
        figure("vdp-noise", "Accuracy and relative variance against the signal-to-noise ratio"),
    ),
    "figure-vdp-explanations": (
        "vdp-scratch",
        figure("vdp-explanations", "Infidelity and Sensitivity-max by image"),
    ),
}
