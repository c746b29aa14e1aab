"""Tables of robustness tests, for tables.py."""

from __future__ import annotations

from table_parts import Result, Table, Tables


def fuzz(result: Result) -> Table:
    rows = [
        [
            name,
            f"{row['inputs']:,}",
            f"{row['read']:,}",
            f"{row['refused']:,}",
            str(sum(row["other"].values())),
            f"{row['slowest cpu seconds']:.3f}",
            f"{max(row['memory growth in MB'], 0):.0f}",
        ]
        for name, row in sorted(result["readers"].items(), key=lambda item: -item[1]["inputs"])
    ]
    return ["file", "inputs", "read", "rejected", "other outcomes", "slowest, CPU seconds", "memory growth, MB"], rows


def fuzz_predict(result: Result) -> Table:
    keys = ("inputs", "answered", "refused")
    rows = [
        [
            name,
            *(f"{row[key]:,}" for key in keys),
            str(sum(row["other"].values())),
            f"{row['slowest cpu seconds']:.3f}",
            f"{max(row['memory growth in MB'], 0):.0f}",
        ]
        for name, row in result["storages"].items()
    ]
    return [
        "storage",
        "inputs",
        "answered",
        "rejected",
        "other outcomes",
        "slowest, CPU seconds",
        "memory growth, MB",
    ], rows


def service(result: Result) -> Table:
    keys = ("clients", "slow clients", "requests")
    wrong = sum(count for name, count in result["outcomes"].items() if name not in ("answered", "refused rubbish"))
    row = [
        *(str(result[key]) for key in keys),
        *(str(result["outcomes"].get(name, 0)) for name in ("answered", "refused rubbish")),
        str(wrong),
        f"{result['slowest seconds']:.1f}",
        f"{max(result['memory growth in MB'], 0):.0f}",
    ]
    head = [*keys, "same answer as `predict`", "malformed, rejected", "other outcomes", "slowest, seconds"]
    return [*head, "memory growth, MB"], [row]


def atheris(result: Result) -> Table:
    rows = [
        [
            name,
            f"{row['inputs']:,}",
            " to ".join(map(str, row["branches reached at first and at last"])),
            "none" if row["exit"] == 0 else "see the result",
        ]
        for name, row in result["readers"].items()
    ]
    return ["file", "inputs", "branches reached", "failures"], rows


def load(result: Result) -> Table:
    names = {"images": "images evaluated", "calls": "calls of `predict`"}
    rows = [
        [
            names[key],
            f"{result[key]['count']:,}",
            str(result[key]["samples"]),
            f"{result[key]['growth in MB']:.2f}",
            f"{result[key]['bytes for each']:.2f}",
        ]
        for key in names
    ]
    return ["", "items", "samples", "growth, MB", "slope, bytes per item"], rows


def mutation(result: Result) -> Table:
    rows = [
        [name, str(row["mutants"]), str(row["noticed"] + row["never ends"]), str(row["survived"])]
        for name, row in result.items()
    ]
    return ["", "mutants", "detected", "survived"], rows


def portability(result: Result) -> Table:
    rows = []
    for kind, settings in result.items():
        for setting, folders in settings.items():
            counts = [sum(row.get(key, 0) for row in folders.values()) for key in ("passed", "skipped", "failed")]
            processors = sorted({row["cpu"] for row in folders.values()})
            rows.append([setting, kind, str(len(folders)), *map(str, counts), ", ".join(processors)])
    return ["setting", "tests", "folders", "passed", "skipped", "failed", "CPU"], rows


def seeds(result: Result) -> Table:
    rows = [[name.partition("::")[2], f"{row['passed']} of {row['of']}"] for name, row in result["tests"].items()]
    return ["test", "seeds passed"], rows


def conditions(result: Result) -> Table:
    rows = [[name, "yes" if row["ok"] else "no", row["message"]] for name, row in result["rows"].items()]
    return ["condition", "as expected", "result"], rows


TABLES: Tables = {
    "conditions": ("conditions", conditions),
    "fuzz": ("fuzz", fuzz),
    "fuzz-predict": ("fuzz-predict", fuzz_predict),
    "service": ("service", service),
    "fuzz-atheris": ("fuzz-atheris", atheris),
    "load": ("load", load),
    "mutation": ("mutation", mutation),
    "portability": ("portability", portability),
    "seeds": ("seeds", seeds),
}
