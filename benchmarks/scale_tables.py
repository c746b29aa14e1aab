"""The table of kills.json, for tables.py."""

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


TABLES: Tables = {"kills": ("kills", kills)}
