"""Members and rows as jobs on a local Ray cluster: restarts, and equality with the serial result."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.recipes import studies
from pocketbayes.training.workers import connected, run_jobs

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "lr": 1e-2, "seed": 3, "progress": False}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start a cluster of two processes for all tests, unless one is running."""
    with connected(2, None):
        yield


def data_that_kills(marker: Path) -> Any:
    class Killing(Dataset):  # within a function, so that Ray sends it by value
        x, y = tiny_data()

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> Any:
            if (marker.parent / "run").exists() and not marker.exists() and os.getpid() != parent:
                begun = list((marker.parent / "run").glob("member-2/checkpoint*.safetensors"))
                if begun:  # in the middle of the second member
                    marker.write_text(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGKILL)
            return self.x[index], self.y[index]

    parent = os.getpid()
    return Killing()


def test_ensemble_on_ray_equals_the_serial_one_after_a_kill(tmp_path: Path) -> None:
    data = data_that_kills(tmp_path / "killed")
    method = pb.MeanFieldVI(std_init=0.1)
    serial = pb.fit(pb.Ensemble(members=3, method=method), tiny_model(), data, out=tmp_path / "serial", **SETTINGS)
    (tmp_path / "run").mkdir()
    ensemble = pb.Ensemble(members=3, method=method, workers=2)
    found = pb.fit(ensemble, tiny_model(), data, out=tmp_path / "run", **SETTINGS)
    assert (tmp_path / "killed").exists()
    for name, value in serial.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert (tmp_path / "run/model.pocket").read_bytes() == (tmp_path / "serial/model.pocket").read_bytes()
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert len(lines) == len((tmp_path / "serial/metrics.jsonl").read_text().splitlines())


def test_study_on_ray_equals_the_serial_one(tmp_path: Path) -> None:
    tree = {
        "about": "small",
        "stands_for": "a test",
        "minutes": 1,
        "samples": 2,
        "seeds": [0, 1],
        "base": {
            "model": {"name": "mlp", "hidden": [4]},
            "data": {"name": "digits", "subset": 60, "val_fraction": 0.0},
            "training": {"epochs": 1, "batch_size": 32},
        },
        "rows": {
            "map": {"recipe": {"method": "map"}},
            "bbb": {"recipe": {"method": "bbb"}},
            "bbb mean": {"of": "bbb", "propagation": "mean"},
        },
    }
    study = studies.Study.model_validate(tree)
    serial, found = (
        studies.reproduce("small", study, tmp_path / name, tmp_path / f"{name}-work", progress=False, workers=workers)
        for name, workers in (("serial", 0), ("ray", 2))
    )
    for row, kept in serial["rows"].items():
        assert list(found["rows"][row]["seeds"]) == list(kept["seeds"])
        for seed, figures in kept["seeds"].items():
            for key in ("accuracy", "nll", "ece", "bytes"):
                assert found["rows"][row]["seeds"][seed][key] == figures[key]


def test_job_errors_are_raised_in_the_caller() -> None:
    def job(number: int) -> int:
        if number == 1:
            raise pb.UserError("one is not allowed")
        return number

    with pytest.raises(pb.UserError, match="one is not allowed"):
        dict(run_jobs(job, [(0,), (1,)], 2))
    assert dict(run_jobs(job, [(2,), (3,)], 2)) == {0: 2, 1: 3}
