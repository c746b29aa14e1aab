"""Measure line and branch coverage of all tests but the slow ones, and write results/coverage.json.

python tools/measure_coverage.py [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def figures(summary: dict[str, Any]) -> dict[str, float]:
    """Return the percentages of lines, of branches, and of both."""
    branches = summary["num_branches"]
    return {
        "lines": round(100 * summary["covered_lines"] / max(summary["num_statements"], 1), 2),
        "branches": round(100 * summary["covered_branches"] / branches, 2) if branches else 100.0,
        "both": round(summary["percent_covered"], 2),
    }


def main() -> None:
    report = ROOT / ".coverage.json"
    options = ["--cov", "--cov-report=term:skip-covered", f"--cov-report=json:{report}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "pytest", *options, *sys.argv[1:]], cwd=ROOT, env=environment, check=True)
    found = json.loads(report.read_text())
    files = {name.partition("src/")[2] or name: figures(entry["summary"]) for name, entry in found["files"].items()}
    files = dict(sorted(files.items(), key=lambda item: item[1]["both"]))
    result = {"how": "all tests but those marked slow", "total": figures(found["totals"]), "files": files}
    (ROOT / "benchmarks" / "results" / "coverage.json").write_text(json.dumps(result, indent=1) + "\n")
    print(result["total"])


if __name__ == "__main__":
    main()
