"""Tables of ensembles: independent members in full, and coded."""

from __future__ import annotations

from typing import Any

from table_parts import Result, Table, Tables

OF_TEN, OF_TWO = "of 10 within 760000", "of 2 within 135000"
COUNTS = (2, 3, 5, 10)
KEYS = ("nll", "ece", "calibrated_nll", "svhn_auroc", "cifar100_auroc")
HEAD = ["accuracy", "NLL", "ECE", "calibrated NLL", "SVHN AUROC", "CIFAR-100 AUROC"]


def figures(row: dict[str, Any]) -> list[str]:
    return [
        f"{100 * row['accuracy']:.2f}",
        *(f"{row[name]:.3f}" if name in row else "" for name in KEYS),
    ]


def members(result: Result) -> Table:
    """The curve of independent members."""
    chosen = [(count, row) for count, row in result["rows"].items() if count in ("1", "2", "3", "5", "10")]
    return ["members", *HEAD], [[count, *figures(row)] for count, row in chosen]


def coded_rows(result: Result) -> list[tuple[int, dict[str, Any]]]:
    """The coded members by their number: those of the file of ten, and two in a smaller one."""
    found = []
    for name, row in result.get("rows", {}).items():
        count, *rest = name.split(" ")
        if (" ".join(rest) == OF_TEN and int(count) in COUNTS) or (" ".join(rest) == OF_TWO and int(count) == 2):
            found.append((int(count), row))
    return sorted(found, key=lambda pair: pair[1]["bytes"])


def coded(result: Result) -> Table:
    """Coded members by the bytes of their file, with their worth in independent members and their passes."""
    rows = []
    for count, row in coded_rows(result):
        worth = "" if row["dee"] is None else f"{row['dee']:.1f}"
        asked = f"{row['adaptive']['passes']:.2f}" if "adaptive" in row else "1"
        rows.append([str(count), f"{row['bytes']:,}", *figures(row), worth, asked])
    return ["members", "bytes", *HEAD, "DEE", "adaptive passes"], rows


def shift(result: Result) -> Table:
    """Accuracy and NLL by severity, FP32 members beside coded ones."""
    full = [(count, row) for name, row in result["rows"].items() if (count := _full(name)) in (1, *COUNTS)]
    rows = []
    for kind, group in (("FP32", full), ("coded", coded_rows(result))):
        for count, row in group:
            if "shift" in row:
                each = [f"{100 * own['accuracy']:.1f} / {own['nll']:.2f}" for own in row["shift"].values()]
                rows.append([f"{count}, {kind}", *each])
    return ["members", *(f"severity {number}" for number in range(1, 6))], rows


def _full(name: str) -> int | None:
    count, *rest = name.split(" ")
    return int(count) if rest == ["in", "FP32"] else None


def trained(result: Result) -> Table:
    """Members trained by our recipes: one in FP32, all in FP32, all in one coded file."""
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


def adaptive(result: Result) -> str:
    """One line on adaptive passes."""
    row = result["rows"]["5 of 10 within 760000"]["adaptive"]
    return (
        f"Five coded members, {row['passes']:.2f} passes per image on average: NLL {row['nll']:.4f}, "
        f"{row['nll_with_all']:.4f} with all five ({100 * row['rise']:+.1f} %).\n"
    )


TABLES: Tables = {
    "members": ("members", members),
    "coded-members": ("coded-members", coded),
    "coded-members-shift": ("coded-members", shift),
    "trained-members": ("ensembles", trained),
    "adaptive-passes": ("coded-members", adaptive),
}
