"""The hard conditions of benchmarks/conditions.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

conditions = __import__("conditions")


@pytest.fixture
def _root_may_mount(tmp_path: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    try:
        mount = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mount.returncode:
        pytest.skip("this root may not mount a file system")
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.usefixtures("_root_may_mount")
@pytest.mark.parametrize("condition", ["full_disk", "read_only_folder"])
def test_train_without_rights_ends_in_one_line(condition: str) -> None:
    row = getattr(conditions, condition)()
    assert row["ok"], row


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_predict_and_folders_refuse_a_picture_bomb() -> None:
    row = conditions.picture_bomb(side=20_000)
    assert row["ok"], row
    assert row["memory growth in MB"] < 300  # the bomb would take 400 MB


def test_fit_ignores_clocks_that_jump() -> None:
    row = conditions.clock_jumps()
    assert row["ok"], row
