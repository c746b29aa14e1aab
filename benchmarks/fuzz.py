"""Fuzz every file reader: a damaged file must be read or rejected with a UserError, in little time and memory.

python benchmarks/fuzz.py [--inputs 10000] [--networks 1000000] [--only NAME ...]

Writes results/fuzz.json, one row per reader.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from fuzz_readers import READERS, Reader
from measure import Rows, forget_peak, memory

LONGEST = 1.0
"""Limit per input, in CPU seconds."""


def outcome(reader: Reader, data: bytes, path: Path) -> str:
    """Return the outcome of reading these bytes: "read", "refused", or the name of the exception."""
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except pb.UserError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return "read"


def prepare(reader: Reader, folder: Path) -> tuple[list[bytes], Path]:
    """Write valid files and read them once, which imports all modules; return them and the path for damaged ones."""
    files, path = reader.corpus(folder), folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    for data in files:
        outcome(reader, data, path)
    with contextlib.suppress(pb.UserError):
        pb.models.build("unknown")  # imports torchvision and timm, which should not count as the cost of a file
    return files, path


def spoil(reader: Reader, files: list[bytes], seed: str) -> bytes:
    """Return one of the files, damaged according to the seed."""
    chooser = random.Random(seed)
    return reader.mutate(chooser.choice(files), chooser)


def fuzz(name: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Read `count` damaged files of a kind and return the outcomes."""
    reader = READERS[name]
    files, path = prepare(reader, folder)
    outcomes: Counter[str] = Counter()
    slowest, total = 0.0, time.process_time()
    forget_peak()
    before = memory("VmHWM")
    for number in range(count):
        data = spoil(reader, files, f"{seed} {number}")
        start = time.process_time()
        found = outcome(reader, data, path)
        took = time.process_time() - start
        slowest = max(slowest, took)
        outcomes[found] += 1
        if found not in ("read", "refused") or took > LONGEST:
            print(f"{name} {seed} {number}: {found}, {took:.2f} s", flush=True)
        if (number + 1) % 50_000 == 0:
            print(name, number + 1, dict(outcomes), round(time.process_time() - total), "s", flush=True)
    return {
        "inputs": count,
        "read": outcomes.pop("read", 0),
        "refused": outcomes.pop("refused", 0),
        "other": dict(outcomes),
        "slowest cpu seconds": round(slowest, 4),
        "memory growth in MB": round((memory("VmHWM") - before) / 2**20, 1),
        "cpu seconds": round(time.process_time() - total, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="of each kind")
    parser.add_argument("--networks", type=int, default=1_000_000, help="of pocket files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(READERS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows("fuzz", {"seed": arguments.seed}, key="readers")
    fast = Path("/dev/shm")
    for name in arguments.only or sorted(READERS, key="network".__eq__):
        count = arguments.networks if name == "network" else arguments.inputs
        if name not in rows or arguments.only:
            with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
                rows.keep(name, fuzz(name, count, arguments.seed, Path(folder)))


if __name__ == "__main__":
    main()
