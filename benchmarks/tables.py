"""Generate the tables of README and docs from the JSON files in results/.

python benchmarks/tables.py [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import corruption_tables
import ensemble_tables
import headline_tables
import paper_tables
import pbn_tables
import peer_tables
import pocket_tables
import posterior_tables
import propagation_tables
import robustness_tables
import scale_tables
import speed_tables
import study_tables
import trial_tables
from table_parts import Group, Result, Table, Tables, grouped, mean, spread

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MARK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LABELS = {
    r"whole$": "complete",
    r"as it was$": "uncompressed",
    r"(deterministic, )?trained on$": r"\1trained longer",
    r"(.*)means as the model's": r"\1unscaled means",
    r"(.*)first std": r"\1initial std",
    r"a picture of": "an image of",
    r"a folder of another user$": "another user's folder",
    r"others' weights$": "third-party weights",
    r"others' safetensors$": "third-party safetensors",
}
"""Row names of result files and how the tables show them."""


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *([shown(cell) for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def shown(cell: str) -> str:
    """Return a cell with the table's name for a row of the result files."""
    for name, label in LABELS.items():
        cell = re.sub(f"^{name}", label, cell)
    return cell


def weight_sharing(result: Result) -> Table:
    rows = []
    for name, group in grouped(result["rows"]).items():
        first = group[0]
        settings = first.get("settings", {})
        conditions = (
            f"{settings['samples']} samples, {first['count']:.0f} images, {len(group)} seed{'s' * (len(group) > 1)}"
            if settings
            else "one pass"
        )
        rows.append(
            [
                name,
                f"{100 * mean(group, 'accuracy'):.2f}",
                f"{mean(group, 'nll'):.3f}",
                f"{mean(group, 'ece'):.3f}",
                *(str(first.get(key, "")) for key in ("gaussians", "outliers", "ellipse points")),
                f"{first['index bits']:.2f}" if "index bits" in first else "",
                conditions,
            ]
        )
    head = ["", "accuracy", "NLL", "ECE", "Gaussians", "outliers", "ellipse points", "index bits", "conditions"]
    return head, rows


def weight_sharing_mnist(result: Result) -> Table:
    rows = [
        [
            name,
            f"{100 * row['accuracy']:.2f}",
            f"{row['nll']:.4f}",
            f"{row['ece']:.4f}",
            *(f"{row[key]:,}" for key in ("gaussians", "outliers", "ellipse points", "weights", "bytes")),
        ]
        for name, row in result["rows"].items()
    ]
    head = ["", "accuracy", "NLL", "ECE", "Gaussians", "outliers", "ellipse points", "weights", "bytes"]
    return head, rows


def ood(result: Result) -> Table:
    rows = []
    for name in ("deterministic", "main, seed 0"):
        for other, scores in result["rows"].get(name, {}).get("ood", {}).items():
            figures = scores["max probability"]
            rows.append([name, other, *(f"{figures[key]:.3f}" for key in ("auroc", "aupr_out", "fpr85", "fpr95"))])
    return ["", "against", "AUROC", "AUPR", "FPR at 85 % TPR", "FPR at 95 % TPR"], rows


def accuracy_nll(group: Group | None) -> str:
    """Return accuracy with its std over seeds, and NLL."""
    if not group:
        return ""
    return f"{spread([100 * row['accuracy'] for row in group], 2)} / {mean(group, 'nll'):.3f}"


def ssvi_mnist(result: Result) -> Table:
    found = result["rows"]
    twins = {name: found.get(name.replace("SSVI snr", "SSVI abs-snr")) for name in found if "SSVI snr" in name}
    same = bool(twins) and all(
        twin and twin["fingerprint"] == found[name]["fingerprint"] for name, twin in twins.items()
    )
    if same:
        found = {
            name.replace("abs-snr", "abs-snr, snr (identical)"): row for name, row in found.items() if name not in twins
        }
    groups = grouped(found)
    names = dict.fromkeys(name.split(", density ")[0] for name in groups if ", density " in name)
    densities = dict.fromkeys(name.split(", density ")[1] for name in groups if ", density " in name)
    rows = [[name, *(accuracy_nll(groups.get(f"{name}, density {d}")) for d in densities)] for name in names]
    rows.append(["dense VI, all weights", accuracy_nll(groups.get("dense VI")), *[""] * (len(densities) - 1)])
    seeds = max(map(len, groups.values()))
    head = [f"accuracy / NLL, up to {seeds} seeds", *(f"{100 * float(d):g} % of the weights" for d in densities)]
    return head, rows


def ssvi_cifar10(result: Result) -> Table:
    groups = grouped(result["rows"])
    dense = groups["dense VI"][0]
    rows = [
        [
            name,
            accuracy_nll(group),
            f"{mean(group, 'ece'):.3f}",
            str(len(group)),
            *(
                f"{group[0][key]:.2e} ({group[0][key] / dense[key]:.2f}x)"
                for key in ("training FLOPs, present weights", "training FLOPs, executed")
            ),
            *(f"{group[0][key]:,} ({group[0][key] / dense[key]:.2f}x)" for key in ("training bytes", "file bytes")),
        ]
        for name, group in groups.items()
    ]
    flops = ["training FLOPs, present weights (the paper's count)", "training FLOPs, executed"]
    return ["", "accuracy / NLL", "ECE", "seeds", *flops, "bytes in training", "file bytes"], rows


def sparse_sizes(result: Result) -> Table:
    rows = []
    for model, part in result["sizes"].items():
        for what in ("training bytes, sgd", "training bytes, adamw", "file bytes"):
            found = part[what]
            figures = [f"{found[key]:,}" for key in ("dense", "sparse")]
            rows.append([model, what, *figures, f"{found['ratio']:.3f}"])
        dense = part["training FLOPs per example, dense VI"]
        for what in ("present weights (paper's count)", "executed"):
            count = part[f"training FLOPs per example, {what}"]
            rows.append([model, f"FLOPs per example, {what}", f"{dense:,.0f}", f"{count:,.0f}", f"{count / dense:.3f}"])
    density = next(iter(result["sizes"].values()))["density"]
    return ["model", "", "dense VI", f"SSVI, density {density}", "ratio"], rows


def sparse_times(result: Result) -> Table:
    rows = []
    for name, part in result["times"].items():
        for kernel, title in (("SSVI, auto", "automatic"), ("SSVI, dense", "dense products")):
            times = [part[key][kernel] for key in ("training step, times faster", "30-sample prediction, times faster")]
            rows.append([name.split(",")[0], str(part["density"]), title, *(f"{value:.2f}" for value in times)])
    head = [
        "model",
        "density",
        "kernel",
        "training step, times faster than dense VI",
        "30-sample prediction, times faster",
    ]
    return head, rows


TABLES: Tables = {
    **speed_tables.TABLES,
    "weight-sharing": ("weight-sharing", weight_sharing),
    "weight-sharing-ood": ("weight-sharing", ood),
    "weight-sharing-mnist": ("weight-sharing-mnist", weight_sharing_mnist),
    "ssvi-mnist": ("ssvi-mnist", ssvi_mnist),
    "ssvi-cifar10": ("ssvi-cifar10", ssvi_cifar10),
    "sparse-sizes": ("sparse", sparse_sizes),
    "sparse-times": ("sparse", sparse_times),
    **headline_tables.TABLES,
    **study_tables.TABLES,
    **ensemble_tables.TABLES,
    **pbn_tables.TABLES,
    **pocket_tables.TABLES,
    **posterior_tables.TABLES,
    **robustness_tables.TABLES,
    **scale_tables.TABLES,
    **peer_tables.TABLES,
    **propagation_tables.TABLES,
    **corruption_tables.TABLES,
    **trial_tables.TABLES,
    **paper_tables.TABLES,
}


def table(name: str) -> str:
    """Return a table in Markdown."""
    file, make = TABLES[name]
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{file}.json"))}
    made = make(found if "*" in file else found[file]) if found else ([], [])
    if isinstance(made, str):
        return made
    head, rows = made
    return markdown(head, rows) if rows else "Not measured yet.\n"


def renewed(text: str) -> str:
    return MARK.sub(lambda match: match[1] + "\n" + table(match["name"]) + "\n" + match[3], text)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a table is stale")
    check = parser.parse_args().check
    stale = [page for page in pages() if renewed(page.read_text()) != page.read_text()]
    for page in stale:
        if not check:
            page.write_text(renewed(page.read_text()))
        print(page.relative_to(ROOT), "does not match the results: run benchmarks/tables.py" if check else "updated")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
