"""Run the tests under the conditions of other machines: instruction sets, threads, orders, data, Python versions.

python tools/portability.py [PATH ...] [--quick] [--only NAME] [--again] [-n 1]

Three settings cover every factor, each with another seed; factors that this machine does not support are skipped.
`--only` with the name of a factor runs that one alone, to find the cause of a failure. `--quick` runs the tests marked
`numerics` instead of the full suite. Writes benchmarks/results/portability.json at the end, since tests compare it
with the docs, and a .part file beside it folder by folder, from which it resumes; `--again` runs finished folders
again. Exits with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "portability.json"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OUTCOMES = "(?P<outcome>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)"
OUTCOME = re.compile(rf"(?P<test>tests/.*?::.*?) {OUTCOMES}\b")
OUTCOME_OF_WORKER = re.compile(rf"\[gw\d+\] \[ *\d+%\] {OUTCOMES} (?P<test>tests/.*?)\s*$")
Folders = dict[str, dict[str, Any]]
"""Counts of outcomes and the names of failures, by test folder."""


@dataclass(frozen=True)
class Setting:
    """A configuration for running the tests.

    Attributes:
        environment: Changed environment variables; None removes one.
        options: Options for pytest.
        python: The interpreter.
    """

    environment: dict[str, str | None] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    python: str = sys.executable

    def __or__(self, other: Setting) -> Setting:
        """Combine two settings of the same interpreter."""
        return Setting(self.environment | other.environment, self.options + other.options, self.python)


FACTORS = {
    "default": Setting({"ATEN_CPU_CAPABILITY": "default"}),
    "avx2": Setting({"ATEN_CPU_CAPABILITY": "avx2"}),
    "avx512": Setting({"ATEN_CPU_CAPABILITY": "avx512"}),
    "MKL compatible": Setting({"MKL_CBWR": "COMPATIBLE"}),
    "oneDNN AVX2": Setting({"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "1 thread": Setting({"OMP_NUM_THREADS": "1"}),
    "2 threads": Setting({"OMP_NUM_THREADS": "2"}),
    "without data": Setting({"POCKETBAYES_DATA": None}),
    **{f"order {number}": Setting(options=("--shuffle", str(number))) for number in (1, 2, 3)},
}
COVERING = (
    ("default", "1 thread", "order 1"),
    ("avx2", "MKL compatible", "2 threads", "order 2"),
    ("avx512", "oneDNN AVX2", "without data", "order 3"),
)
"""Combinations in which every factor occurs."""


def settings() -> Iterator[tuple[str, Setting]]:
    """Yield the combinations and interpreters that this machine supports, by name."""
    for names in COVERING:
        offered = [name for name in names if _is_offered(name)]
        yield ", ".join(offered), reduce(or_, (FACTORS[name] for name in offered))
    own = ".".join(platform.python_version_tuple()[:2])
    for version in PYTHONS:
        found = shutil.which(f"python{version}")
        if version != own and found and _can_run(found):
            yield f"Python {version}", Setting(python=found)


def _is_offered(factor: str) -> bool:
    """Return whether this machine's processor supports a factor."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    needed = {"avx2": "avx2", "avx512": "avx512f", "MKL compatible": "sse2", "oneDNN AVX2": "sse2"}
    return needed.get(factor, "") in flags


def _can_run(python: str) -> bool:
    """Return whether an interpreter has the packages that the tests need."""
    check = [python, "-c", "import pocketbayes, pytest, hypothesis"]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


def run(setting: Setting, options: list[str], in_order: bool, keep: Callable[[Folders], None]) -> Folders:
    """Run the tests in one setting; call `keep` after each folder, if tests run folder by folder."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    for name, value in setting.environment.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    command = [setting.python, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--tb=no", *setting.options, *options]
    folders: Folders = {}
    current = ""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            found = OUTCOME.match(line) or OUTCOME_OF_WORKER.match(line)
            if not found:
                continue
            test, outcome = found["test"], found["outcome"].lower()
            folder = test.split("/")[1].partition(".py")[0]
            if in_order and current and folder != current:
                keep({current: folders[current]})
            current = folder
            row = folders.setdefault(folder, {"failures": []})
            row[outcome] = row.get(outcome, 0) + 1
            if outcome in ("failed", "error"):
                row["failures"].append(test)
    if process.returncode not in (0, 1, 5):  # 5: no test is marked
        raise SystemExit(f"pytest ended with {process.returncode}: {' '.join(command)}")
    return folders


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="test folders, instead of all")
    parser.add_argument("--quick", action="store_true", help="only the tests marked numerics")
    parser.add_argument("--only", action="append", help="this setting or single factor, by name; may be repeated")
    parser.add_argument("--again", action="store_true", help="also folders that have a result")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("-n", type=int, default=1, help="processes; folders are kept as they end if 1")
    parser.add_argument("--seed", type=int, help="torch's; another one in every setting if not given")
    arguments = parser.parse_args()
    marks, kind = ("numerics and not slow", "numerics") if arguments.quick else ("not slow", "whole suite")
    part = arguments.out.with_suffix(".part")
    newest = part if part.is_file() else arguments.out
    document = json.loads(newest.read_text()) if newest.is_file() else {}
    paths = arguments.paths or sorted(str(path.parent) for path in {*ROOT.glob("tests/*/test_*.py")})
    paths = sorted({str(Path(path).resolve().relative_to(ROOT)) for path in paths})
    covering, failed = dict(settings()), False
    for title in arguments.only or covering:
        setting = (covering | FACTORS)[title]
        seed = [*covering, title].index(title) + 1 if arguments.seed is None else arguments.seed
        rows = document.setdefault(kind, {}).setdefault(title, {})

        def keep(folders: Folders, seed: int = seed, rows: dict[str, Any] = rows) -> None:
            for name, row in folders.items():
                rows[name] = {**row, "seed": seed, "cpu": _cpu()}
            part.write_text(json.dumps(document, indent=1) + "\n")

        missing = [path for path in paths if arguments.again or Path(path).name not in rows]
        if missing:
            workers = ["-n", str(arguments.n)] if arguments.n > 1 else []
            options = ["-m", marks, "--seed", str(seed), *workers, *missing]
            keep(run(setting, options, not workers, keep))
        failures = [test for row in rows.values() for test in row["failures"]]
        failed |= bool(failures)
        print(f"{title:45s} {sum(row.get('passed', 0) for row in rows.values())} passed", *failures, flush=True)
    if part.is_file():
        part.replace(arguments.out)
    return int(failed)


def _cpu() -> str:
    """Return the processor's name."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", information.read_text()) if information.is_file() else None
    return found[1].strip() if found else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
