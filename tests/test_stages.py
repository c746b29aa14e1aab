"""Methods of several stages, stopped at each kind of place, go on bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pocketbayes as pb
from cases import tiny_data, tiny_model

METHODS = {
    "swag": lambda: pb.SWAG(swag_epochs=3, rank=2),
    "ensemble": lambda: pb.Ensemble(members=2),
    "multi-swag": lambda: pb.Ensemble(members=2, method=pb.SWAG(swag_epochs=2, rank=2)),
    "laplace": lambda: pb.Laplace(hessian="diag"),
    "int8": lambda: pb.Int8(method="bbb"),
}
STOPS = {"swag": (4, 5, 7, 10), "ensemble": (4, 6, 8), "multi-swag": (5, 11, 16), "laplace": (4,), "int8": (4,)}
"""Checkpoints: the end of a stage, the middle of the next, the last of all, after which only a stage's end is left."""


class StoppedError(Exception):
    pass


def fit(name: str, folder: Path, **settings: object) -> pb.network.Net:
    return pb.fit(
        METHODS[name](),
        tiny_model(),
        tiny_data(),
        epochs=2,
        batch_size=16,
        lr=1e-2,
        checkpoint_steps=2,
        seed=5,
        out=folder,
        progress=False,
        **settings,
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_run_stopped_between_and_within_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit(name, tmp_path / "whole").state_dict()
    write = pb.checkpoint.write
    for stop in STOPS[name]:
        count = 0

        def write_and_stop(*args: object) -> None:
            nonlocal count
            write(*args)
            count += 1
            if count == stop:  # noqa: B023 (called within this turn of the loop)
                raise StoppedError

        monkeypatch.setattr(pb.checkpoint, "write", write_and_stop)
        with pytest.raises(StoppedError):
            fit(name, tmp_path / str(stop))
        monkeypatch.setattr(pb.checkpoint, "write", write)
        resumed = fit(name, tmp_path / str(stop), resume=True).state_dict()
        assert list(resumed) == list(whole)
        assert all(torch.equal(whole[key], resumed[key]) for key in whole), stop
        lines = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", str(stop))]
        assert lines[0] == lines[1]
