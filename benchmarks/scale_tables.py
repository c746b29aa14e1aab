"""The tables of kills.json and memory-model.json, for tables.py."""

from __future__ import annotations

from table_parts import Result, Table, Tables


def kills(result: Result) -> Table:
    rows = [
        [
            name,
            *(str(row[key]) for key in ("kills", "by the clock", "runs")),
            ", ".join(f"{count} {where}" for where, count in row["stages"].items()),
            str(len(row["differences"])),
        ]
        for name, row in result["rows"].items()
    ]
    head = ["", "kills", "of these at a random time", "runs", "killed after a checkpoint of", "files that differ"]
    return head, rows


def memory(result: Result) -> Table:
    devices = list(next(iter(result["rows"].values()))["replicated"])
    rows = []
    for name, row in result["rows"].items():
        held = [row["replicated"][devices[0]]["held"], *(row["sharded"][count]["held"] for count in devices)]
        rows.append([name, *map(gigabytes, held), gigabytes(row["activations"])])
    head = ["GB held by a device", "replicated", *(f"sharded over {count}" for count in devices), "activations"]
    return head, rows


def traffic(result: Result) -> Table:
    devices = list(next(iter(result["rows"].values()))["replicated"])
    ways = ("replicated", "sharded")
    rows = [
        [name, *(gigabytes(row[way][count]["sent"]) for way in ways for count in devices)]
        for name, row in result["rows"].items()
    ]
    return ["GB sent by a device in a step", *(f"{way}, {count}" for way in ways for count in devices)], rows


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f}"


TABLES: Tables = {
    "kills": ("kills", kills),
    "memory-model": ("memory-model", memory),
    "traffic-model": ("memory-model", traffic),
}
