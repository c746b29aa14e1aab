"""Run the tests as other machines would: instruction sets, kernels, threads, orders, data, Python versions.

python tools/portability.py [PATH ...] [--quick] [--only NAME ...] [-n 2]

`--quick` runs the tests marked `numerics`, without it the whole suite runs in every setting. Settings that this machine
does not offer are left out. Writes benchmarks/results/portability.json as results come; exits with 1 if a test failed.
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
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "portability.json"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


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


def run(setting: Setting, quick: bool, workers: int, paths: list[str]) -> dict[str, Any]:
    """Run the tests in one setting and return counts, failures and CPU seconds."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    for name, value in setting.environment.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    marks = "numerics and not slow" if quick else "not slow"
    command = [
        setting.python,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-m",
        marks,
        *setting.options,
        *paths,
    ]
    command += ["-n", str(workers)] if workers > 1 else []
    before = sum(os.times()[2:4])
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", done.stdout)}
    return {
        **counts,
        "failures": re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE),
        "exit": done.returncode,
        "seconds": round(time.monotonic() - start),
        "cpu seconds": round(sum(os.times()[2:4]) - before),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="test files, instead of all")
    parser.add_argument("--quick", action="store_true", help="only the tests marked numerics")
    parser.add_argument("--only", nargs="*", help="these settings, by name")
    parser.add_argument("-n", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if platform.system() == "Linux" else None
    document = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    which = " ".join(arguments.paths) or ("numerics" if arguments.quick else "whole suite")
    rows = document.setdefault(which, {})
    failed = False
    for setting in settings():
        if arguments.only and setting.name not in arguments.only:
            continue
        row = run(setting, arguments.quick, arguments.n, arguments.paths)
        rows[setting.name] = {**row, "cpu": cpu[1].strip() if cpu else platform.processor()}
        failed |= row["exit"] != 0
        print(f"{setting.name:32s}", {key: value for key, value in row.items() if value}, flush=True)
        RESULT.write_text(json.dumps(document, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
