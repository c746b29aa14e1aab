"""Run every test that asserts learning with many seeds, so that none passes by chance.

python tools/check_seeds.py [--seeds 20] [-k EXPRESSION] [PATH ...]

A test that takes the fixture `learning_seed` draws its data, initial weights and data order from it. Writes
benchmarks/results/seeds.json file by file, with the number of seeds that each test passed. Exits with 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "seeds.json"
SEED = re.compile(r"\[seed\d+\]|seed\d+-|-seed\d+")


class Tally:
    """A pytest plugin that counts passes and failures of each test over its seeds."""

    def __init__(self) -> None:
        self.passed: dict[str, int] = defaultdict(int)
        self.failed: dict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of one seed."""
        if report.when != "call":
            return
        name = SEED.sub("", report.nodeid)
        if report.passed:
            self.passed[name] += 1
        elif report.failed:
            self.failed[name] += re.findall(r"seed(\d+)", report.nodeid)

    def rows(self) -> dict[str, Any]:
        """Return the number of seeds with which each test passed, and the failed seeds."""
        found = {}
        for name in self.passed.keys() | self.failed.keys():
            failures = [int(seed) for seed in self.failed[name]]
            count = self.passed[name]
            found[name] = {"passed": count, "of": count + len(failures), "failed seeds": failures}
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("-k", default="", help="only tests that match; the results of others are kept")
    parser.add_argument("paths", nargs="*", type=Path, help="test files, instead of all")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    torch.set_num_threads(1)
    options = ["-m", "learns and not slow", "--seeds", str(arguments.seeds), "-p", "no:cacheprovider", "--tb=line"]
    options += ["-k", arguments.k] if arguments.k else []
    every = sorted(path for path in Path("tests").rglob("test_*.py") if "learning_seed" in path.read_text())
    rows = json.loads(RESULT.read_text())["tests"] if RESULT.is_file() else {}
    for path in arguments.paths or every:
        tally = Tally()
        pytest.main([*options, str(path)], plugins=[tally])
        rows = {name: row for name, row in rows.items() if arguments.k or not name.startswith(f"{path}::")}
        rows |= tally.rows()
        machine = {"machine": platform.machine(), "capability": torch.backends.cpu.get_cpu_capability()}
        document = {**machine, "torch": torch.__version__, "tests": dict(sorted(rows.items()))}
        RESULT.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(row["failed seeds"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
