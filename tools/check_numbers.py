"""Are the numbers in the prose of README and docs those of generated tables?

python tools/check_numbers.py

A decimal number, or one with a unit, in running text must also stand in a generated table of the same page, where a
new measurement would change it. Code, links and paragraphs that quote a paper ("the paper", "et al.") are left alone.
Other numbers that nobody measured, such as versions and settings, are named: `<!-- not measured: 3.10 95 % -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATED = re.compile(r"<!-- tables?[: ].*?<!-- end.*?-->", re.DOTALL)
DECLARED = re.compile(r"<!-- not measured: (.*?)-->", re.DOTALL)
ELSEWHERE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|arXiv:? ?[\d.]+|<!--.*?-->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,])(?:\d*\.\d+(?: %)?|\d+ (?:%|kB|MB|GB|s\b|ms\b)|\d+x\b)")
QUOTED = re.compile(r"\b[Tt]he paper|\bet al\.|published")
FREE_PAGES = ("docs/dependencies.md", "docs/tutorials/")
"""Pages that list versions, and pages that running their script writes."""


def typed_numbers(text: str) -> list[str]:
    """Return the numbers of a page that no generated table of it holds, in their order."""
    shown = {_value(found) for table in GENERATED.findall(text) for found in re.findall(r"[\d,]*\.?\d+", table)}
    named = {_value(number) for number in NUMBER.findall(" ".join(DECLARED.findall(text)))}
    paragraphs = GENERATED.sub(" ", text).split("\n\n")
    prose = ELSEWHERE.sub(" ", "\n\n".join(part for part in paragraphs if not QUOTED.search(part)))
    return [number for number in NUMBER.findall(prose) if not {_value(number)} & (shown | named)]


def _value(number: str) -> float:
    return float(re.sub(r"[^\d.]", "", number))


def main() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    count = 0
    for page in pages:
        name = str(page.relative_to(ROOT))
        found = [] if name.startswith(FREE_PAGES) else typed_numbers(page.read_text())
        count += len(found)
        if found:
            print(f"{name}: {', '.join(found)}")
    if count:
        sys.exit(f"{count} numbers stand in no generated table of their page: take them from one, or declare them")


if __name__ == "__main__":
    main()
