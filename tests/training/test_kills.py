"""Runs killed by SIGKILL and resumed give the same result: a short version of benchmarks/kills.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.base import atomic
from pocketbayes.data.batches import as_source
from pocketbayes.data.dataset import Images
from pocketbayes.data.pixels import CropFlip, Normalise
from pocketbayes.training import checkpoint

HARNESS = Path(__file__).parents[2] / "benchmarks" / "kills.py"
METHODS = ("2dgbnn", "ssvi", "swag")


def test_fit_resumes_killed_runs_bit_for_bit(tmp_path: Path) -> None:
    """Kills at seeded events, independent of time: a step begins, a file is opened, renamed or removed."""
    chosen = [item for name in METHODS for item in ("--method", name)]
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(HARNESS),
        *chosen,
        "--events",
        "--kills",
        "1",
        "--out",
        str(tmp_path),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "kills.json").read_text())["rows"]
    assert set(rows) == set(METHODS)
    for name, row in rows.items():
        assert row["differences"] == [], name
        assert min(row["stages"].values()) >= 1
        assert len(row["stages"]) >= 3
        assert row["files"] == 5


def test_remove_leftovers_spares_other_files(tmp_path: Path) -> None:
    others = [".model.pocket", ".model.pocket.notes", "model.pocket", ".other.0123abcd", ".model.pocket.0123abcd0"]
    for name in (".model.pocket.0123abcd", *others):
        (tmp_path / name).touch()
    atomic.remove_leftovers(tmp_path / "model.pocket")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_resumes_where_it_stopped(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers fetch ahead of the step at which a run stops, which must not affect their draws."""
    x, y = tiny_data()
    info = as_source((x, y)).info  # type: ignore[union-attr]
    images = ((x - x.min()) / (x.max() - x.min()) * 255).byte()
    data = Images(images, y, info, Normalise((0.5,), (0.5,)), CropFlip(pad=2, flip=True))

    def train(folder: str, resume: bool = False) -> dict[str, torch.Tensor]:
        options = {"epochs": 2, "batch_size": 8, "checkpoint_steps": 2, "workers": workers, "progress": False}
        return pb.fit("map", tiny_model(), data, out=tmp_path / folder, resume=resume, **options).state_dict()

    write, count = checkpoint.write, 0

    def write_and_stop(*args: object) -> None:
        nonlocal count
        write(*args)
        count += 1
        if count == 4:
            raise StoppedError

    whole = train("whole")
    monkeypatch.setattr(checkpoint, "write", write_and_stop)
    with pytest.raises(StoppedError):
        train("parts")
    monkeypatch.undo()
    again = train("parts", resume=True)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
