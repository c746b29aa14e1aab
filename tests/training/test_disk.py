"""Disks that fill up, turn read-only or lose data during a run: one clear line, and no loss."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_guards import Told, fit
from torch import nn

import pocketbayes as pb
from pocketbayes.training import checkpoint


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a separate file system of 1 MB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def empty(disk: Path) -> None:
    (disk / "ballast").unlink()


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def protect(disk: Path) -> None:
    """Turn the disk read-only for all paths that are opened from now on; a run keeps its lock open."""
    mount("--bind", str(disk), str(disk))
    mount("-o", "remount,bind,ro", str(disk))


def release(disk: Path) -> None:
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize(
    ("at", "harm", "mend", "message"),
    [
        (5, fill, empty, "cannot write .*: No space left on device"),
        (5, protect, release, "cannot write .*: Read-only file system"),
        (9, protect, release, "cannot write .*: Read-only file system"),
    ],
    ids=["full", "read-only", "read-only at the end"],
)
def test_fit_on_an_unwritable_disk_keeps_the_last_checkpoint(
    at: int, harm: Callable[[Path], None], mend: Callable[[Path], None], message: str, small_disk: Path, tmp_path: Path
) -> None:
    whole = fit(Told(), tmp_path / "whole").state_dict()
    with pytest.raises(pb.UserError, match=message):
        fit(Told(at, lambda: harm(small_disk)), small_disk / "run")
    mend(small_disk)
    found = checkpoint.read(small_disk / "run")
    assert found is not None
    assert found[0].epoch == (at - 1) // 3
    again = fit(Told(), small_disk / "run", resume=True).state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert (small_disk / "run/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert not [path for path in (small_disk / "run").iterdir() if path.name.startswith(".")]


class Watched(nn.Module):
    """A model that calls a function on its n-th training pass."""

    def __init__(self, at: int = 0, what: Callable[[], object] | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(3 * 8 * 8, 2)
        self.at, self.what, self.count = at, what, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += self.training
        if self.count == self.at and self.what is not None and self.training:
            self.what()
        return self.head(x.flatten(1))

    def __deepcopy__(self, memo: dict[int, Any]) -> Watched:
        return Watched(self.at, self.what)


@pytest.mark.parametrize("workers", [0, 1])
def test_fit_names_vanished_data_and_resumes(workers: int, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / "data" / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)

    def train(folder: str, model: nn.Module, resume: bool = False) -> dict[str, torch.Tensor]:
        data = pb.data.load("imagefolder", "train", tmp_path / "data", size=8, val_fraction=0, test_fraction=0.5)
        options = {"epochs": 3, "batch_size": 4, "checkpoint_steps": 1, "workers": workers, "progress": False}
        return pb.fit("map", model, data, out=tmp_path / folder, resume=resume, **options).state_dict()

    whole = train("whole", Watched())
    vanish = Watched(5, lambda: (tmp_path / "data").rename(tmp_path / "gone"))
    with pytest.raises(pb.UserError, match=r"^[^\n]*data/(cat|dog)/\d+.png[^\n]*No such file[^\n]*$"):
        train("run", vanish)
    with pytest.raises(pb.UserError, match="data"):
        train("run", Watched(), resume=True)
    assert checkpoint.read(tmp_path / "run") is not None
    shutil.move(tmp_path / "gone", tmp_path / "data")
    again = train("run", Watched(), resume=True)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
