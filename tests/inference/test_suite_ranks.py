"""The evaluation suite on several processes gives the document of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import pocketbayes as pb
import ranks
from pocketbayes.base.process_group import ProcessGroup, joined
from pocketbayes.inference.suite import evaluate_suite, read_values

BATCH = 16


def make_net() -> pb.Network:
    """Local noise is drawn per image, so it shows whether ranks get the batches of one process."""
    torch.manual_seed(3)
    model = pb.models.build("mlp", in_features=64, hidden=[12], out_features=10)
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=0.3, propagation="local"))
    net.likelihood = pb.Categorical()
    assert isinstance(net, pb.Network)
    return net


def suite(out: Path, team: ProcessGroup, **changes: Any) -> dict[str, Any]:
    data, other = (pb.data.load("digits", split, subset=size) for split, size in (("test", 90), ("train", 10)))
    humans = torch.rand(90, 10, generator=torch.Generator().manual_seed(1))
    settings = {"samples": 3, "batch_size": BATCH, "humans": humans, "shift": ["rotation"], **changes}
    data = settings.pop("data", data)
    return evaluate_suite(make_net(), data, ood={"few": other}, out=out / "evaluation.json", team=team, **settings)


def measure(folder: Path) -> dict[str, Any]:
    """Each rank has its own folder, as on machines without shared storage."""
    with joined() as team:
        own = folder / str(team.rank)
        return {
            "first": suite(own, team),
            "again": suite(own, team),
            "loader": suite(own / "loader", team, data=loader(batch_size=BATCH), shift=()),
            "uneven": refusal(own / "uneven", team, data=loader(batch_sampler=[[0, 1], list(range(2, 90))]), shift=()),
            "other": refusal(own, team, samples=4),
        }


def loader(**options: Any) -> DataLoader:
    return DataLoader(pb.data.load("digits", "test", subset=90), collate_fn=pb.data.collate, **options)


def refusal(*args: Any, **changes: Any) -> str:
    try:
        suite(*args, **changes)
    except pb.UserError as error:
        return str(error)
    return ""


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "seconds"}


def assert_alike(mine: Any, theirs: Any) -> None:
    """Check for equality, with a tolerance for doubles, whose sums are added in another order."""
    assert type(mine) is type(theirs)
    if isinstance(theirs, dict | list):
        pairs = theirs.items() if isinstance(theirs, dict) else enumerate(theirs)
        assert len(mine) == len(theirs)
        for key, item in pairs:
            assert_alike(mine[key], item)
    else:
        assert mine == (pytest.approx(theirs, rel=1e-12, abs=1e-15) if isinstance(theirs, float) else theirs)


@pytest.mark.parametrize("size", [2, 3])
def test_suite_on_ranks_equals_one_process(size: int, tmp_path: Path) -> None:
    (alone,) = ranks.run(measure, 1, tmp_path / "answers1", tmp_path / "one")
    several = ranks.run(measure, size, tmp_path / "answers", tmp_path / "several")
    assert isinstance(alone, dict), alone
    written, wanted = tmp_path / "several" / "0" / "evaluation.json", tmp_path / "one" / "0" / "evaluation.json"
    for found in several:
        assert isinstance(found, dict), found
        for name in ("first", "loader"):
            assert_alike(without_times(found[name]), without_times(alone[name]))
        assert found["first"]["humans"]["count"] == 90
        assert found["again"] == several[0]["first"]  # nothing was measured again, not even on ranks without the file
        assert "a DataLoader with a batch_size" in found["uneven"]
        assert "another samples (3, now 4)" in found["other"]
    assert json.loads(written.read_text()) == several[0]["again"]
    mine, theirs = read_values(written), read_values(wanted)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert not any((tmp_path / "several" / str(rank)).exists() for rank in range(1, size))


def test_suite_runs_under_torchrun(tmp_path: Path) -> None:
    """Two processes give the output of one; only the first prints and writes."""
    pb.save(make_net(), tmp_path / "net.pocket")
    options = ["evaluate", str(tmp_path / "net.pocket"), "--data", "digits", "--shift", "noise", "--samples", "2"]
    options += ["--set", "data.subset=300", "--json"]
    found = []
    for name in ("two", "one"):
        (result,) = ranks.by_command_line(options, tmp_path / name, torchrun=name == "two")["results"]
        assert result == json.loads((tmp_path / name / "net.evaluation.json").read_text())
        found.append(without_times(result))
    assert_alike(*found)
