"""Test hard conditions: an unprivileged user, a full disk, a decompression bomb, jumping clocks, uneven data shares.

python benchmarks/conditions.py [--only NAME ...] [--out FOLDER]

Each condition is created for real. The first two need root: they mount a small file system and drop privileges. Writes
results/conditions.json, one row per condition.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import pocketbayes as pb
from measure import RESULTS, Rows, forget_peak, memory
from pocketbayes.cli import app

NOBODY = 65534
"""The unprivileged user."""
TINY_RUN = ["train", "--method", "map", "--model", "mlp", "--data", "digits", "--epochs", "1"]
BOMB_SIDE = 50_000
PATIENCE = 120
"""Time limit of a run as the unprivileged user, in seconds."""
Row = dict[str, Any]


def call(command: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process; return its exit code, output and messages."""
    out, messages, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(messages):
        try:
            app(command)
        except SystemExit as error:
            code = int(error.code or 0)
    return code, out.getvalue(), messages.getvalue()


def call_as_nobody(command: list[str]) -> tuple[int, str]:
    """Run a command line as the unprivileged user; return its exit code and messages.

    The command runs in a fork that drops privileges, because that user may not be able to read the interpreter's files.
    An earlier successful run imports all modules.
    """
    with open_folder() as folder:
        call([*TINY_RUN, "--out", str(folder / "run")])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            signal.alarm(PATIENCE)  # stops the child if it hangs, so that the parent continues
            torch.set_num_threads(1)  # threads do not survive a fork
            os.chdir("/")
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code, _, messages = call(command)
            os.write(writer, json.dumps([code, messages]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    os.waitpid(child, 0)
    code, messages = json.loads(told or '[-1, "the process ended without a word"]')
    return code, messages


def describe_refusal(code: int, messages: str, expected: str) -> Row:
    """Return a row that is ok if a command failed with one line that contains the expected words."""
    lines = [line for line in messages.splitlines() if "Warning" not in line]
    ok = code != 0 and expected in messages and "Traceback" not in messages and len(lines) <= 2
    return {"ok": ok, "exit": code, "message": lines[-1].rpartition("/")[2] if lines else ""}


@contextmanager
def open_folder() -> Iterator[Path]:
    """Create a folder that every user can access."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def full_disk() -> Row:
    """Train with a full file system, as the unprivileged user."""
    with open_folder() as folder:
        settings = f"size=64k,mode=777,uid={NOBODY}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", settings, "tmpfs", str(folder)], check=True)
        try:
            code, messages = call_as_nobody([*TINY_RUN, "--out", str(folder / "run")])
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    return describe_refusal(code, messages, "No space left on device")


def read_only_folder() -> Row:
    """Train in another user's folder, as the unprivileged user."""
    with open_folder() as folder:
        code, messages = call_as_nobody([*TINY_RUN, "--out", str(folder / "run")])
    return describe_refusal(code, messages, "Permission denied")


def write_bomb(path: Path, side: int = BOMB_SIDE) -> None:
    """Write a valid PNG of side x side white pixels of one bit, which takes few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, line = zlib.compressobj(9), b"\0" + b"\xff" * -(-side // 8)
    pixels = b"".join([*(packer.compress(line) for _ in range(side)), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def picture_bomb(side: int = BOMB_SIDE) -> Row:
    """Predict the bomb on the command line, and load it from an image folder."""
    with open_folder() as folder:
        run, bomb = folder / "run", folder / "pictures" / "train" / "cat" / "bomb.png"
        call([*TINY_RUN, "--out", str(run)])
        bomb.parent.mkdir(parents=True)
        write_bomb(bomb, side)
        with suppress(OSError):  # not allowed everywhere
            forget_peak()
        before, begun = memory("VmHWM"), time.process_time()
        code, _, messages = call(["predict", str(run), str(bomb)])
        row = describe_refusal(code, messages, "pixels")
        try:
            pb.data.load("imagefolder", "train", folder / "pictures", size=16)[0]
            row["ok"] = False
        except pb.UserError:
            pass
        row["bytes"] = bomb.stat().st_size
        row["memory growth in MB"] = round((memory("VmHWM") - before) / 2**20, 1)
        row["cpu seconds"] = round(time.process_time() - begun, 2)
    return row


@contextmanager
def jumping_clock(seed: int) -> Iterator[None]:
    """Make every reading of a clock jump by up to ten years, forwards or backwards."""
    chooser = random.Random(seed)

    def jump() -> float:
        return 1.8e9 + chooser.uniform(-3e8, 3e8)

    with mock.patch("time.time", jump), mock.patch("time.monotonic", jump), mock.patch("time.perf_counter", jump):
        yield


def clock_jumps() -> Row:
    """Train, stop and resume while the clocks jump; compare with a run under a steady clock."""
    settings = {"epochs": 4, "batch_size": 16, "progress": False, "seed": 0}
    data = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return pb.models.build("mlp", in_features=6, out_features=3, hidden=[8])

    with open_folder() as folder:
        expected = pb.fit("bbb", model(), data, out=folder / "steady", **settings).state_dict()
        with jumping_clock(1):
            pb.fit("bbb", model(), data, out=folder / "run", **settings)
            os.utime(folder / "run" / "metrics.jsonl", (0, 0))
            found = pb.fit("bbb", model(), data, out=folder / "run", resume=True, **settings).state_dict()
            first = pb.fit("bbb", model(), data, out=folder / "other", **settings).state_dict()
    same = all(torch.equal(expected[name], net[name]) for net in (found, first) for name in expected)
    return {"ok": same, "message": "the same network, bit for bit" if same else "another network"}


def uneven_shares() -> Row:
    """Train with two processes on 46 examples in batches of 16, and with one."""
    root = Path(__file__).parents[1] / "tests"
    sys.path[:0] = [str(root), str(root / "training")]
    distributed = __import__("test_distributed")
    with open_folder() as folder:
        (alone,) = distributed.ranks.run(distributed.train, 1, folder / "a", "lrt", folder / "one")
        both = distributed.ranks.run(distributed.train, 2, folder / "b", "lrt", folder / "two")
    difference = float((alone["mean"] - both[0]["mean"]).abs().max())
    ok = difference < 1e-3 and both[0]["print"] == both[1]["print"]
    return {"ok": ok, "message": f"weights differ by {difference:.1e} at most, both ranks have the same"}


CONDITIONS: dict[str, Callable[[], Row]] = {
    "a full disk, not root": full_disk,
    "a folder of another user": read_only_folder,
    "a picture of 50,000 x 50,000 pixels": picture_bomb,
    "clocks that jump by years": clock_jumps,
    "two processes, 46 examples, batches of 16": uneven_shares,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(CONDITIONS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows("conditions", order=CONDITIONS, folder=arguments.out)
    for name in arguments.only or CONDITIONS:
        rows.keep(name, CONDITIONS[name]())
    return int(not all(row["ok"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
