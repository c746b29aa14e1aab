"""Count the lines of each room of the package: code, imports, docstrings, comments and blank lines.

python tools/count_lines.py
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "pocketbayes"
KINDS = ("code", "imports", "docstrings", "comments", "blank")


def kinds_of(text: str) -> list[str]:
    """Return the kind of each line of a module."""
    lines = [line.strip() for line in text.splitlines()]
    kinds = ["comments" if line.startswith("#") else "code" if line else "blank" for line in lines]
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            kinds[node.lineno - 1 : node.lineno - 1 + count] = ["docstrings" if is_text else "imports"] * count
    return kinds


def main() -> None:
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        rooms.setdefault(room, Counter()).update(kinds_of(path.read_text()), files=1)
    rooms["total"] = sum(rooms.values(), Counter())
    print(f"{'room':12} {'files':>6} {'lines':>7}", *(f"{kind:>11}" for kind in KINDS))
    for room, counts in rooms.items():
        lines = sum(counts[kind] for kind in KINDS)
        print(f"{room:12} {counts['files']:6} {lines:7}", *(f"{counts[kind]:11}" for kind in KINDS))


if __name__ == "__main__":
    main()
