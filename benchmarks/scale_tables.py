"""Table of kills.json, for tables.py."""

from __future__ import annotations

from table_parts import Result, Table, Tables


def kills(result: Result) -> Table:
    rows = [
        [
            name,
            *(str(row[key]) for key in ("kills", "runs", "by the clock")),
            ", ".join(f"{count} {where}" for where, count in row["stages"].items()),
            str(len(row["differences"])),
        ]
        for name, row in result["rows"].items()
    ]
    head = ["", "kills", "runs", "first killed at a random time", "stages killed in", "files that differ"]
    return head, rows


TABLES: Tables = {"kills": ("kills", kills)}
