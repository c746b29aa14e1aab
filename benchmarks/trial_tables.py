"""Tables of wide-*.json, selection.json, vdp-scratch.json and learned-plane.json, for tables.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from table_parts import Group, Result, Table, Tables, grouped, mean, spread

QUALITY = ["accuracy", "NLL", "calibrated NLL", "ECE", "epistemic share", "AUROC, entropy", "AUROC, MI"]


def quality(group: Group) -> list[str]:
    """Return the cells of the columns `QUALITY`."""
    point = not any(row["epistemic share"] for row in group)
    return [
        spread([100 * row["accuracy"] for row in group], 2),
        f"{mean(group, 'nll'):.4f}",
        spread([row["calibrated nll"] for row in group], 4),
        f"{mean(group, 'ece'):.3f}",
        "" if point else f"{mean(group, 'epistemic share'):.3f}",
        spread([row["auroc entropy"] for row in group], 3),
        "" if point else f"{mean(group, 'auroc mi'):.3f}",
    ]


def health(group: Group) -> str:
    """Return how far stds moved, and their signal-to-noise ratio."""
    found = [row["health"] for row in group]
    if any(each["snr"] is None for each in found):
        return ""
    if any(each["std_movement"] is None for each in found):
        return "std not learned"
    moved, correlation, snr = (
        statistics.fmean(each[key] for each in found) for key in ("std_movement", "std_rank_correlation", "snr")
    )
    verdict = "" if all(each["learned"] for each in found) else " (std not learned)"
    return f"{moved:.2f}, {correlation:.2f}, {snr:.1f}{verdict}"


HEALTH = "stds: movement, rank correlation, signal-to-noise"


def wide(result: Result) -> Table:
    rows = []
    groups = grouped(result["rows"])
    order = sorted(groups, key=lambda name: -groups[name][0]["weights"])
    for name in order:
        group = groups[name]
        hidden = "-".join(map(str, group[0]["hidden"]))
        title = name.split(",")[0].replace("small ", "").replace("wider ", "")
        memory = [f"{group[0][key] / 1e6:.1f}" for key in ("state bytes", "peak bytes of a step")]
        rows.append(
            [title, hidden, f"{group[0]['weights']:,}", *quality(group), health(group), *memory, str(len(group))]
        )
    head = ["", "hidden units", "weights", *QUALITY, HEALTH, "state, MB", "peak of a training step, MB", "seeds"]
    return head, rows


def choose(result: Result) -> Table:
    rows = [[name, *quality(group), health(group)] for name, group in grouped(result["rows"]).items()]
    return ["", *QUALITY, HEALTH], rows


def scores(result: Result) -> Table:
    rows = []
    for name, group in grouped(result["rows"]).items():
        overlap = statistics.fmean(row["iou"][0][3] for row in group)
        rows.append([name, *quality(group), f"{overlap:.2f}", str(len(group))])
    return ["", *QUALITY, "overlap of magnitude and abs-snr", "seeds"], rows


def selection(result: Result) -> Table:
    """Return the rules by rate, after the rows without a rate."""
    rows = []
    for name, group in sorted(grouped(result["rows"]).items(), key=lambda item: _rate(item[0])):
        count = f"{group[0]['random weights']:,}" if "random weights" in group[0] else "0"
        maximum = spread([row["auroc maximum"] for row in group], 3)
        std = f"{mean(group, 'median std'):.3f}" if "median std" in group[0] else ""
        rows.append([name, count, *quality(group), maximum, std, str(len(group))])
    return ["", "random weights", *QUALITY, "AUROC, max probability", "median std", "seeds"], rows


def _rate(name: str) -> float:
    return float(name.rpartition("rate ")[2]) if "rate" in name else -1.0


def scratch(result: Result) -> Table:
    rows = []
    for name, group in _without_tests(result).items():
        pruned = [
            _percent([_at(row["pruning"]["magnitude"], "pruned", fraction) for row in group])
            for fraction in (0.5, 0.9, 0.95, 0.99)
        ]
        ratio = [_at(row["pruning"]["snr"], "pruned", 0.9) for row in group if "snr" in row["pruning"]]
        noise = _percent([_at(row["noise"], "db", -6.0) for row in group])
        rows.append(
            [
                name,
                *quality(group),
                f"{mean(group, 'nll after calibrate'):.4f}",
                *pruned,
                _percent(ratio) if ratio else "",
                noise,
                health(group),
                str(len(group)),
            ]
        )
    head = ["", *QUALITY, "NLL after `pb.calibrate`", "50 % pruned", "90 %", "95 %", "99 %", "90 % by SNR", "at -6 dB"]
    return [*head, HEALTH, "seeds"], rows


def scratch_noise(result: Result) -> Table:
    """Return the relative variance of the predicted class by signal-to-noise ratio, as medians over seeds."""
    groups = {name: group for name, group in _without_tests(result).items() if name != "map"}
    if not groups:
        return [], []
    decibels = [point["db"] for point in next(iter(groups.values()))[0]["noise"]]
    rows = [
        [name, *(f"{statistics.median(row['noise'][i]['relative variance'] for row in group):.2f}" for i in range(6))]
        for name, group in groups.items()
    ]
    return ["relative variance at", *(f"{db:g} dB" for db in decibels)], rows


def scratch_tests(result: Result) -> Table:
    tests = result["rows"].get("tests")
    if not tests:
        return [], []
    anova = tests["anova"]
    rows = [[f"ANOVA of accuracy, {anova['seeds']} seeds", f"F = {anova['f']:.2f}", f"{anova['p']:.3g}"]]
    rows += [[f"accuracy, pruned {name}", *_test(test)] for name, test in tests["pruning"].items()]
    rows += [[name, *_test(test)] for name, test in tests["explanations"].items()]
    found = result["rows"].get("vdp, cross-entropy, seed 0", {}).get("spearman with full covariance")
    if found is not None:
        rows.append(["Spearman of variance over dB with full covariance", f"{found:.2f}", ""])
    return ["", "difference from map", "p"], rows


def _test(test: Mapping[str, Any]) -> list[str]:
    return [f"{test['difference']:.3g}", f"{test['p']:.3g}"]


def _without_tests(result: Result) -> dict[str, Group]:
    return grouped({name: row for name, row in result["rows"].items() if name != "tests"})


def _at(rows: list[dict[str, float]], key: str, value: float) -> float:
    return next(row["accuracy"] for row in rows if row[key] == value)


def _percent(values: list[float]) -> str:
    return spread([100 * value for value in values], 1)


def plane(result: Result) -> Table:
    rows = []
    for name, group in grouped(result["rows"]).items():
        first = group[0]
        counts = [f"{first[key]:,}" if key in first else "" for key in ("gaussians", "outliers", "ellipse points")]
        rows.append([name, *quality(group), *counts, f"{first['bytes'] / 1000:.0f}", str(len(group))])
    return ["", *QUALITY, "Gaussians", "outliers", "ellipse points", "file, kB", "seeds"], rows


def moved(result: Result) -> str:
    """Return a sentence on how far stage 3 moved the Gaussians."""
    found = [row["moved"] for row in result["rows"].values() if "moved" in row]
    if not found:
        return "Not measured yet.\n"
    centre, width, std = (statistics.fmean(row[key] for row in found) for key in found[0])
    return (
        f"Stage 3 moved a Gaussian's centre by {centre:.2f} of its width, its width by {100 * width:.1f} % and its std "
        f"by {100 * std:.1f} % (medians over Gaussians, {len(found)} seed{'s' * (len(found) > 1)}).\n"
    )


TABLES: Tables = {
    "wide": ("wide-wide", wide),
    "wide-choose": ("wide-choose", choose),
    "wide-scores": ("wide-scores", scores),
    "selection": ("selection", selection),
    "vdp-scratch": ("vdp-scratch", scratch),
    "vdp-scratch-noise": ("vdp-scratch", scratch_noise),
    "vdp-scratch-tests": ("vdp-scratch", scratch_tests),
    "learned-plane": ("learned-plane", plane),
    "learned-plane-moved": ("learned-plane", moved),
}
