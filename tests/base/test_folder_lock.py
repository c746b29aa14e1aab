"""Folder locks: a second run is rejected, and a lock ends with its run."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.base.run_folder import LOCK_FILE, hold

HOLDER = """
import sys, time
from pathlib import Path
from pocketbayes.base.run_folder import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def start_holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_fit_refuses_a_folder_that_another_process_trains_in(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    try:
        with pytest.raises(pb.UserError, match=f"another run is writing to .*process {process.pid} on"):
            pb.fit("map", tiny_model(), tiny_data(), epochs=1, out=tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    pb.fit("map", tiny_model(), tiny_data(), epochs=1, out=tmp_path)  # the lock of a killed run does not count
    assert not (tmp_path / LOCK_FILE).exists()


def test_hold_refuses_another_thread_and_nests_in_one(tmp_path: Path) -> None:
    refused: list[BaseException] = []

    def try_to_hold() -> None:
        try:
            with hold(tmp_path):
                pass
        except pb.UserError as error:
            refused.append(error)

    with hold(tmp_path), hold(tmp_path):
        thread = threading.Thread(target=try_to_hold)
        thread.start()
        thread.join()
        assert (tmp_path / LOCK_FILE).exists()
    assert len(refused) == 1
    try_to_hold()
    assert len(refused) == 1


def test_hold_removes_the_folders_that_stay_empty(tmp_path: Path) -> None:
    with hold(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        ({"pid": os.getppid(), "host": platform.node()}, True),
        ({"pid": 2**22 + 1, "host": platform.node()}, False),  # no such process: above Linux's largest pid
        ({"pid": os.getppid(), "host": "elsewhere"}, True),
        ({"pid": "nonsense", "host": platform.node()}, False),
        ("nonsense", False),
    ],
)
def test_hold_reads_the_lock_file_without_system_locks(
    holder: Any, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.lockf", not_supported)
    (tmp_path / LOCK_FILE).write_text(json.dumps(holder))
    os.utime(tmp_path / LOCK_FILE, (2**33, 2**33))  # the clock has jumped since
    if refused:
        with pytest.raises(pb.UserError, match="remove"), hold(tmp_path):
            pass
    else:
        with hold(tmp_path):
            pass


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system follows links")
def test_hold_refuses_a_lock_that_links_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(other)
    with pytest.raises(pb.UserError, match=r"cannot write .*\.lock"), hold(tmp_path / "run"):
        pass
    assert other.read_text() == "precious"
