"""Tables of ensembles: independent members in FP32, and coded."""

from __future__ import annotations

import re
from statistics import mean
from typing import Any

from table_parts import Result, Table, Tables

FULL_COUNTS = (1, 2, 3, 5, 10)
CODED = re.compile(r"(\d+) of (\d+) within (\d+)(?:, (\d+) steps)?$")
"""The name of a row of coded members: number of members, members in the file, its size, training steps."""
FILE_OF_ALL, SHOWN_OF_ALL = (10, 760_000), (2, 3, 5)
"""The file whose first members are also rows; other files only have a row for all members."""
KEYS = ("nll", "ece", "calibrated_nll", "svhn_auroc", "cifar100_auroc")
HEAD = ["accuracy", "NLL", "ECE", "calibrated NLL", "SVHN AUROC", "CIFAR-100 AUROC"]


def figures(row: dict[str, Any]) -> list[str]:
    return [
        f"{100 * row['accuracy']:.2f}",
        *(f"{row[name]:.3f}" if name in row else "" for name in KEYS),
    ]


def members(result: Result) -> Table:
    """Return the curve of independent members."""
    chosen = [(count, row) for count, row in result["rows"].items() if count in ("1", "2", "3", "5", "10")]
    return ["members", *HEAD], [[count, *figures(row)] for count, row in chosen]


def coded_rows(result: Result) -> list[tuple[int, dict[str, Any]]]:
    """Return coded members by number, smallest file first; numbers without their own file are prefixes of ten."""
    own, first = [], []
    for name, row in result.get("rows", {}).items():
        if match := CODED.match(name):
            count, of, limit = (int(part) for part in match.groups()[:3])
            if count == of:
                own.append((count, row))
            elif (of, limit) == FILE_OF_ALL and count in SHOWN_OF_ALL:
                first.append((count, row))
    counts = {count for count, _ in own}
    return sorted([*own, *(pair for pair in first if pair[0] not in counts)], key=lambda pair: pair[1]["bytes"])


def coded(result: Result) -> Table:
    """Return coded members by file size, with their deep ensemble equivalent and passes."""
    rows = []
    for count, row in coded_rows(result):
        worth = "" if row["dee"] is None else f"{row['dee']:.1f}"
        passes = f"{row['adaptive']['passes']:.2f}" if "adaptive" in row else "1"
        rows.append([str(count), f"{row['bytes']:,}", str(row.get("steps", 0)), *figures(row), worth, passes])
    return ["members", "bytes", "training steps", *HEAD, "DEE", "adaptive passes"], rows


def shift(result: Result) -> Table:
    """Return accuracy and NLL by severity, of FP32 and coded members."""
    full = [(count, row) for name, row in result["rows"].items() if (count := _full(name)) in FULL_COUNTS]
    rows = []
    for kind, group in (("FP32", full), ("coded", coded_rows(result))):
        for count, row in group:
            if "shift" in row:
                each = [f"{100 * own['accuracy']:.1f} / {own['nll']:.2f}" for own in row["shift"].values()]
                rows.append([f"{count}, {kind}", f"{row['bytes']:,}" if "bytes" in row else "", *each])
    return ["members", "bytes", *(f"severity {number}" for number in range(1, 6))], rows


def _full(name: str) -> int | None:
    count, *rest = name.split(" ")
    return int(count) if rest == ["in", "FP32"] else None


def seconds(result: Result) -> str:
    """Return a sentence on the time of choosing members and bits."""
    row = result["rows"]["compress"]
    return (
        f"`pb.compress` of {row['members']} ResNet-20s within {row['max_bytes']:,} bytes took {row['cpu_seconds']:.0f} "
        f"seconds of CPU on one core, with {row['val']:,} validation images. "
        f"The members had been trained on these images; it kept {row['kept']} of them in {row['bytes']:,} bytes.\n"
    )


def trained(result: Result) -> Table:
    """Return members trained by our recipes: one in FP32, all in FP32, all in one coded file."""
    rows = []
    for name, case in result["rows"].items():
        for what in ("one", "fp32", "coded"):
            row = case[what]
            words = {"one": "one, FP32", "fp32": f"{case['members']}, FP32", "coded": f"{case['members']}, coded"}
            rows.append(
                [
                    name.removesuffix("-ensemble") if what == "one" else "",
                    words[what],
                    f"{row['bytes']:,}",
                    f"{100 * row['accuracy']:.2f}" if "accuracy" in row else "",
                    f"{row['nll']:.4f}" if "nll" in row else f"{-row['log_likelihood']:.4f}",
                    f"{row['miou']:.3f}" if "miou" in row else "",
                    f"{row['rmse']:.3f}" if "rmse" in row else "",
                    f"{100 * row['disagreement']:.1f}" if "disagreement" in row else "",
                ]
            )
    return ["data", "members", "bytes", "accuracy", "NLL", "mean IoU", "RMSE", "disagreement, %"], rows


def cheap(result: Result) -> Table:
    """Return coded ensembles from one training compared with independent ones: DEE by bytes and by training."""
    seeds = list(result["rows"].values())
    rows = []
    for mode in seeds[0]["modes"]:
        own = [row["modes"][mode] for row in seeds if mode in row["modes"]]
        size, passes = mean(row["bytes"] for row in own), own[0]["passes"]
        worth = mean(row["coded"]["dee"] for row in own)
        more = "> " if max(row["coded"]["dee"] for row in own) >= len(seeds[0]["curve"]) else ""  # beyond the curve
        figures = [mean(row["coded"][key] for row in own) for key in ("accuracy", "nll", "calibrated_nll")]
        rows.append(
            [
                mode,
                str(passes),
                f"{size:,.0f}",
                f"{100 * figures[0]:.2f}",
                *(f"{value:.4f}" for value in figures[1:]),
                f"{more}{worth:.1f}",
                f"{more}{10_000 * worth / size:.2f}",
                f"{more}{result['epochs'] * worth / passes:.2f}",
            ]
        )
    head = ["passes", "bytes", "accuracy", "NLL", "calibrated NLL", "DEE", "DEE per 10 kB", "DEE per training"]
    return ["mode", *head], rows


def adaptive(result: Result) -> str:
    """Return a sentence on adaptive passes."""
    row = result["rows"][f"5 of {FILE_OF_ALL[0]} within {FILE_OF_ALL[1]}"]["adaptive"]
    return (
        f"Five coded members, {row['passes']:.2f} passes per image on average: NLL {row['nll']:.4f}, "
        f"{row['nll_with_all']:.4f} with all five ({100 * row['rise']:+.1f} %).\n"
    )


TABLES: Tables = {
    "members": ("members", members),
    "coded-members": ("coded-members", coded),
    "coded-members-shift": ("coded-members", shift),
    "trained-members": ("ensembles", trained),
    "compress-seconds": ("coded-members", seconds),
    "cheap-modes": ("cheap-modes", cheap),
    "adaptive-passes": ("coded-members", adaptive),
}
