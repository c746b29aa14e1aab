"""Fuzz with coverage feedback: atheris mutates inputs towards code that was not reached before.

python benchmarks/fuzz_atheris.py [--runs 50000]      needs `pip install atheris` (Linux)

Two readers: pocket files, whose checksum is corrected before reading so that mutations reach the decoder, and
recipes. Anything but a UserError stops the run with the input that caused it. Writes results/fuzz-atheris.json.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHECKSUM = re.compile(rb'"checksum":"([^"]{32})"')
BLANK = b"0" * 32
WATCHED = {
    "network": [
        "pocketbayes.files.pocket",
        "pocketbayes.files.packing",
        "pocketbayes.files.codec",
        "pocketbayes.files.network_file",
    ],
    "recipe": ["pocketbayes.recipes", "yaml"],
}
SLOW = 10
"""Factor by which YAML's parser is slower under instrumentation."""


def sealed(data: bytes) -> bytes:
    """Return the file with a correct checksum, if it has one."""
    found = CHECKSUM.search(data, 8)
    if found is None:
        return data
    digest = hashlib.blake2b(data[: found.start(1)] + BLANK + data[found.end(1) :], digest_size=16)
    return data[: found.start(1)] + digest.hexdigest().encode() + data[found.end(1) :]


def child(name: str, runs: int, folder: Path) -> None:
    """Fuzz one reader; atheris ends the process."""
    import atheris

    with atheris.instrument_imports(include=WATCHED[name]):
        import pocketbayes as pb
        from fuzz import READERS, prepare

    reader = READERS[name]
    files, path = prepare(reader, folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(files):
        (corpus / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        path.write_bytes(sealed(data) if name == "network" else data)
        with contextlib.suppress(pb.UserError):
            reader.read(path)

    limits = [f"-runs={runs}", "-timeout=5", "-rss_limit_mb=2048", "-max_len=4096", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], one)
    atheris.Fuzz()


def record(name: str, runs: int) -> dict[str, Any]:
    """Run the child process and return its results."""
    fast = Path("/dev/shm")
    start = time.process_time() + os.times().children_user
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
        command = [sys.executable, __file__, "--child", name, "--runs", str(runs), "--folder", folder]
        found = subprocess.run(command, capture_output=True, text=True, errors="replace")
    done = re.search(r"Done (\d+) runs", found.stderr)
    reached = [int(count) for count in re.findall(r"cov: (\d+)", found.stderr)]
    row = {
        "inputs": int(done.group(1)) if done else 0,
        "exit": found.returncode,
        "branches reached at first and at last": reached[:: max(len(reached) - 1, 1)],
        "peak memory in MB": max((int(size) for size in re.findall(r"rss: (\d+)Mb", found.stderr)), default=None),
        "cpu seconds": round(time.process_time() + os.times().children_user - start, 1),
    }
    if found.returncode:
        row["failure"] = found.stderr[-2000:]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50_000, help="pocket files; of recipes a tenth")
    parser.add_argument("--child", choices=list(WATCHED), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.runs, arguments.folder)
        return
    from measure import write_result

    rows = {}
    for name in WATCHED:
        rows[name] = record(name, arguments.runs // (1 if name == "network" else SLOW))
        print(name, rows[name], flush=True)
        write_result("fuzz-atheris", {"readers": rows})


if __name__ == "__main__":
    main()
