"""Writes what `make coverage` measured to benchmarks/results/coverage.json: all files together, and each.

python tools/coverage_result.py [FILE] [--note TEXT]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def figures(summary: dict[str, Any]) -> dict[str, float]:
    """Percent of lines, of branches, and of both together."""
    branches = summary["num_branches"]
    return {
        "lines": round(100 * summary["covered_lines"] / max(summary["num_statements"], 1), 2),
        "branches": round(100 * summary["covered_branches"] / branches, 2) if branches else 100.0,
        "both": round(summary["percent_covered"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / ".coverage.json")
    parser.add_argument("--note", default="make coverage: all tests but those marked slow")
    arguments = parser.parse_args()
    found = json.loads(arguments.file.read_text())
    files = {name.partition("src/")[2] or name: figures(entry["summary"]) for name, entry in found["files"].items()}
    files = dict(sorted(files.items(), key=lambda item: item[1]["both"]))
    result = {"how": arguments.note, "total": figures(found["totals"]), "files": files}
    (ROOT / "benchmarks" / "results" / "coverage.json").write_text(json.dumps(result, indent=1) + "\n")
    print(result["total"])


if __name__ == "__main__":
    main()
