"""All tests but the slow ones under coverage, in one process; then benchmarks/results/coverage.json.

python tools/coverage_run.py [pytest's arguments]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    report = ROOT / ".coverage.json"
    options = ["--cov", "--cov-report=term:skip-covered", f"--cov-report=json:{report}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "pytest", *options, *sys.argv[1:]], cwd=ROOT, env=environment, check=False)
    subprocess.run([sys.executable, ROOT / "tools" / "coverage_result.py", report], check=True)


if __name__ == "__main__":
    main()
