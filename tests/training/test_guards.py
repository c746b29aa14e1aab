"""Runs that are stopped, get invalid values or run out of disk keep their progress."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.base.process_group import LostProcessError
from pocketbayes.files import container, network_file
from pocketbayes.training import checkpoint
from pocketbayes.training.averages import Averages
from pocketbayes.training.checkpoint import Progress
from pocketbayes.training.checks import NotFiniteError, Signals, Snapshot, fingerprint, not_finite


class Told(torch.utils.data.Dataset):
    """The tiny data; a function is called when the n-th batch is fetched."""

    def __init__(self, at: int | None = None, what: Any = None) -> None:
        self.x, self.y = tiny_data()
        self.at, self.what, self.count = at, what, 0

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, rows: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self.count += 1
        if self.count == self.at:
            self.what()
        return [(self.x[row].clone(), self.y[row]) for row in rows]


def fit(data: Any, folder: Path, **settings: Any) -> pb.Network:
    settings = {"epochs": 3, "batch_size": 16, "lr": 1e-2, "seed": 3, **settings}
    return pb.fit(pb.MeanFieldVI(), tiny_model(), data, out=folder, progress=False, **settings)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("at", [2, 4])
def test_signal_saves_within_a_step(number: signal.Signals, at: int, tmp_path: Path) -> None:
    steps = -(-len(tiny_data()[1]) // 16)
    whole = fit(Told(), tmp_path / "whole").state_dict()
    listened = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=number.name):
        fit(Told(at, lambda: os.kill(os.getpid(), number)), tmp_path / "run")
    assert signal.getsignal(number) is listened
    found = checkpoint.read(tmp_path / "run")
    assert found is not None
    assert found[0].epoch * steps + found[0].step in (at - 1, at)  # not the end of an epoch before
    again = fit(Told(), tmp_path / "run", resume=True).state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_signal_repeated_stops_at_once() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.asked == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_signal_of_the_launcher_keeps_the_lost_process_message() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        signals = Signals().__enter__()
        signals.__exit__(LostProcessError, LostProcessError("gone"), None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.asked == "SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_checkpoint_damaged_falls_back_to_the_one_before(tmp_path: Path) -> None:
    whole = fit(Told(), tmp_path / "whole").state_dict()
    fit(Told(), tmp_path / "run")
    newest, before = checkpoint.files(tmp_path / "run")
    assert checkpoint.read(tmp_path / "run")[0].epoch == 3  # type: ignore[index]
    data = bytearray(newest.read_bytes())
    data[-5] ^= 0xFF
    newest.write_bytes(data)
    with pytest.warns(UserWarning, match="resuming from the previous checkpoint"):
        again = fit(Told(), tmp_path / "run", resume=True).state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    for path in checkpoint.files(tmp_path / "run"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match="previous checkpoint"), pytest.raises(pb.UserError, match="checkpoint-1"):
        checkpoint.read(tmp_path / "run")
    assert before.name == "checkpoint-1.safetensors"


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_checkpoints_kept_are_the_last_ones(kept: int, tmp_path: Path) -> None:
    for step in range(6):
        checkpoint.write(tmp_path, checkpoint.Progress(step=step), {"value": torch.tensor(step)}, kept)
        found = [container.read(path, checkpoint.KIND)["progress"]["step"] for path in checkpoint.files(tmp_path)]
        assert found == list(range(step, max(step - kept, -1), -1))
        assert len(list(tmp_path.iterdir())) == len(found)


def test_checkpoint_on_a_full_disk_keeps_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, left = os.fsync, 2

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    whole = fit(Told(), tmp_path / "whole").state_dict()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(pb.UserError, match="No space left on device"):
        fit(Told(), tmp_path / "run")
    monkeypatch.undo()
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    again = fit(Told(), tmp_path / "run", resume=True).state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_divergence_stops_with_step_layer_and_cause(tmp_path: Path) -> None:
    def poison() -> None:
        data.x[:] = float("inf")

    data = Told(5, poison)
    with pytest.raises(NotFiniteError, match=r"the loss .* epoch 2, step 1, first in layer 'conv\.\w+'.* a target is"):
        fit(data, tmp_path / "run")
    assert not (tmp_path / "run" / "model.pocket").exists()
    net = network_file.rebuild(checkpoint.read(tmp_path / "run")[1]["net"], tiny_model())  # type: ignore[index]
    assert not_finite(net) is None  # the last good state


def test_rollback_finishes_with_a_lower_rate(tmp_path: Path) -> None:
    data = Told()
    good = (data.x.clone(), data.y.clone())

    def poison() -> None:
        data.x[:] = float("inf")

    def heal() -> None:
        data.x[:] = good[0]

    data.at, data.what = 5, poison
    fetch = data.__getitems__

    def once(rows: list[int]) -> Any:
        batch = fetch(rows)
        heal()
        return batch

    data.__getitems__ = once  # type: ignore[method-assign]
    net = fit(data, tmp_path / "run", on_nan="rollback")
    assert not_finite(net) is None
    progress = checkpoint.read(tmp_path / "run")[0]  # type: ignore[index]
    assert progress.plateau.factor == 0.5
    assert progress.epoch == 3
    with pytest.raises(NotFiniteError, match="lower lr"):  # a persistent fault is not retried forever
        fit(Told(1, lambda: None), tmp_path / "bad", on_nan="rollback", lr=1e30, optimizer="sgd")


def test_fingerprint_detects_a_single_bit() -> None:
    net = pb.bayesianize(tiny_model(), "bbb")
    before = fingerprint(net)
    assert fingerprint(pb.bayesianize(tiny_model(), "bbb")) == before
    with torch.no_grad():
        net.posterior.mean[3] = torch.nextafter(net.posterior.mean[3], torch.tensor(9.0))
    assert fingerprint(net) != before


def test_divergence_names_the_layer_of_a_bad_value() -> None:
    net = pb.bayesianize(tiny_model(), "bbb")
    assert not_finite(net) is None
    slot = net.layout.slots[-1]
    with torch.no_grad():
        net.posterior.mean[slot.start] = float("nan")
    assert not_finite(net) == slot.name


def test_rollback_halves_the_rate_once() -> None:
    """Also after good epochs in between: a state after a rollback already has the lower rate."""
    net = pb.bayesianize(nn.Linear(2, 2), pb.Deterministic())
    optimizer, averages, at = torch.optim.SGD(net.parameters(), 0.1), Averages(net), Progress()
    good = Snapshot(net, optimizer, averages, at)
    assert good.restore(net, optimizer, averages).plateau.factor == 0.5
    again = good.restore(net, optimizer, averages)
    assert again.plateau.factor == 0.25
    later = Snapshot(net, optimizer, averages, again, good.used)
    assert later.restore(net, optimizer, averages).plateau.factor == 0.125
    assert later.used == 3
