"""Run the tests as other machines would: instruction sets, kernels, threads, orders, data, Python versions.

python tools/portability.py [PATH ...] [--quick] [--only NAME ...] [--again] [-n 2]

`--quick` runs the tests marked `numerics`, without it the whole suite runs in every setting. Settings that this machine
does not offer are left out, and every setting has another of torch's seeds. Writes benchmarks/results/portability.json
folder by folder and resumes there; `--again` runs finished folders again. Exits with 1 if a test failed.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "portability.json"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OUTCOMES = "(?P<outcome>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)"
OUTCOME = re.compile(rf"(?P<test>tests/.*?::.*?) {OUTCOMES}\b")
OUTCOME_OF_WORKER = re.compile(rf"\[gw\d+\] \[ *\d+%\] {OUTCOMES} (?P<test>tests/.*?)\s*$")
Folders = dict[str, dict[str, Any]]
"""Counts of outcomes and the names of failures, by folder of the tests."""


@dataclass(frozen=True)
class Setting:
    """One way to run the tests.

    Attributes:
        name: Its row in the table.
        environment: Variables that differ; None removes one.
        options: For pytest.
        python: The interpreter.
    """

    name: str
    environment: dict[str, str | None] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    python: str = sys.executable


def settings() -> Iterator[Setting]:
    """Yield every setting that this machine offers."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    yield Setting("as it is")
    for capability, flag in (("default", ""), ("avx2", "avx2"), ("avx512", "avx512f")):
        if flag in flags:
            yield Setting(f"ATEN_CPU_CAPABILITY={capability}", {"ATEN_CPU_CAPABILITY": capability})
    if platform.machine() in ("x86_64", "AMD64"):
        yield Setting("MKL_CBWR=COMPATIBLE", {"MKL_CBWR": "COMPATIBLE"})
        yield Setting("ONEDNN_MAX_CPU_ISA=AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    yield Setting("2 threads", {"OMP_NUM_THREADS": "2"})
    yield Setting("without data", {"POCKETBAYES_DATA": None})
    yield Setting("order 1", options=("--shuffle", "1"))
    yield Setting("order 2", options=("--shuffle", "2"))
    own = ".".join(platform.python_version_tuple()[:2])
    for version in PYTHONS:
        found = shutil.which(f"python{version}")
        if version != own and found and _can_run(found):
            yield Setting(f"Python {version}", python=found)


def _can_run(python: str) -> bool:
    """Tell whether an interpreter has the packages that the tests need."""
    check = [python, "-c", "import pocketbayes, pytest, hypothesis"]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


def run(
    setting: Setting, seed: int, marks: str, workers: int, paths: list[str], keep: Callable[[Folders], None]
) -> Folders:
    """Run the tests in one setting; `keep` gets the folders that are complete as they end."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    for name, value in setting.environment.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    command = [setting.python, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--tb=no", "-m", marks]
    command += ["--seed", str(seed), *setting.options, *(["-n", str(workers)] if workers > 1 else []), *paths]
    folders: Folders = {}
    in_order = workers == 1 and "--shuffle" not in setting.options
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
    if process.returncode not in (0, 1, 5):  # 5: none of the tests has the marks
        raise SystemExit(f"{setting.name}: pytest ended with {process.returncode}: {' '.join(command)}")
    return folders


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="test folders, instead of all")
    parser.add_argument("--quick", action="store_true", help="only the tests marked numerics")
    parser.add_argument("--only", nargs="*", help="these settings, by name")
    parser.add_argument("--again", action="store_true", help="also folders that have a result")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("-n", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    marks, kind = ("numerics and not slow", "numerics") if arguments.quick else ("not slow", "whole suite")
    document = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    paths = arguments.paths or sorted(str(path.parent) for path in {*ROOT.glob("tests/*/test_*.py")})
    paths = sorted({str(Path(path).resolve().relative_to(ROOT)) for path in paths})
    failed = False
    for seed, setting in enumerate(settings()):
        if arguments.only and setting.name not in arguments.only:
            continue
        rows = document.setdefault(kind, {}).setdefault(setting.name, {})

        def keep(folders: Folders, seed: int = seed, rows: dict[str, Any] = rows) -> None:
            for name, row in folders.items():
                rows[name] = {**row, "seed": seed, "cpu": _cpu()}
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")

        missing = [path for path in paths if arguments.again or Path(path).name not in rows]
        if missing:
            keep(run(setting, seed, marks, arguments.n, missing, keep))
        failures = [test for row in rows.values() for test in row["failures"]]
        failed |= bool(failures)
        print(f"{setting.name:32s} {sum(row.get('passed', 0) for row in rows.values())} passed", *failures, flush=True)
    return int(failed)


def _cpu() -> str:
    """Return the processor's name."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", information.read_text()) if information.is_file() else None
    return found[1].strip() if found else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
