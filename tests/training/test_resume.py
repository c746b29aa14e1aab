"""Intact checkpoints with invalid contents are skipped, and the file and part are named."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.files import container
from pocketbayes.training import checkpoint, run
from pocketbayes.training.checkpoint import check_random

NAN = float("nan")
OPTIMISERS = ("adamw", "sgd")


def fit(folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    settings = {"epochs": 3, "batch_size": 16, "lr": 1e-2, "seed": 3, "keep_best": True, "out": folder, **settings}
    net = pb.fit(pb.MeanFieldVI(), tiny_model(), tiny_data(), val=tiny_data(20), progress=False, **settings)
    return dict(net.state_dict())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: Any) -> dict[str, tuple[Path, dict[str, torch.Tensor]]]:
    """Return a finished run for each optimiser, with the checkpoints of its last two epochs."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: (folder / name, fit(folder / name, optimizer=name)) for name in OPTIMISERS}


def put(*path: Any) -> Callable[[Any], None]:
    """Set the value at a path; a function computes it from the old value."""
    *way, last, value = path

    def spoil(tree: Any) -> None:
        for step in way:
            tree = tree[step]
        tree[last] = value(tree[last]) if callable(value) else value

    return spoil


def drop(*path: Any) -> Callable[[Any], None]:
    *way, last = path

    def spoil(tree: Any) -> None:
        for step in way:
            tree = tree[step]
        del tree[last]

    return spoil


def with_nan(value: torch.Tensor) -> torch.Tensor:
    return value.index_fill(0, torch.tensor([1]), NAN)


STATE = ("optimizer", "state", 0)
GROUP = ("optimizer", "param_groups", 0)
WRONG: dict[str, tuple[str, Callable[[Any], None]]] = {
    "another shape of a moment": ("optimizer", put(*STATE, "exp_avg", lambda moment: moment[:-1])),
    "a moment that is no number": ("optimizer", put(*STATE, "exp_avg", with_nan)),
    "a moment that is no tensor": ("optimizer", put(*STATE, "exp_avg", 0.5)),
    "a negative square": ("optimizer", put(*STATE, "exp_avg_sq", lambda moment: moment - 1e3)),
    "a moment less": ("optimizer", drop(*STATE, "exp_avg_sq")),
    "a moment of a parameter that is not there": ("optimizer", put("optimizer", "state", 99, {})),
    "a step that is infinite": ("optimizer", put(*STATE, "step", torch.tensor(float("inf")))),
    "no moments at all": ("optimizer", drop("optimizer", "state")),
    "no groups": ("optimizer", put("optimizer", "param_groups", [])),
    "other parameters": ("optimizer", put(*GROUP, "params", lambda numbers: numbers[::-1])),
    "a rate that is no number": ("optimizer", put(*GROUP, "lr", NAN)),
    "a rate that is text": ("optimizer", put(*GROUP, "lr", "fast")),
    "betas that are no numbers": ("optimizer", put(*GROUP, "betas", (0.9, NAN))),
    "a setting less": ("optimizer", drop(*GROUP, "eps")),
    "an average less": ("averages", drop("averages", "values", -1)),
    "an average of another shape": ("averages", put("averages", "values", 0, lambda value: value[:-1])),
    "an average that is no number": ("averages", put("averages", "values", 0, with_nan)),
    "an average that ends after the last step": ("averages", put("averages", "last", 10**6)),
    "averages without a number of steps": ("averages", drop("averages", "steps")),
    "averages that are text": ("averages", put("averages", "none")),
    "no generators": ("random", put("random", [])),
    "a generator less": ("random", drop("random", 0, "python")),
    "a short state of torch": ("random", put("random", 0, "torch", lambda state: state[:-1])),
    "a state of torch that it never has": ("random", put("random", 0, "torch", torch.zeros_like)),
    "numpy's place beyond its words": ("random", put("random", 0, "numpy", 2, 10**6)),
    "numpy's place before its words": ("random", put("random", 0, "numpy", 2, -1)),
    "too few words of numpy": ("random", put("random", 0, "numpy", 1, lambda words: words[:9])),
    "another generator of numpy": ("random", put("random", 0, "numpy", 0, "PCG64")),
    "numpy's next normal is no number": ("random", put("random", 0, "numpy", 4, NAN)),
    "too few words of Python": ("random", put("random", 0, "python", 1, [1, 2, 3])),
    "a weight that is no number": ("net", put("net", "posterior", "tensors", "mean", with_nan)),
    "a network of another size": ("net", put("net", "posterior", "tensors", "mean", lambda mean: mean[:-1])),
    "a best network without its weights": ("best", drop("best", "posterior")),
    "a stage that the method does not have": ("progress", put("progress", "stage", 7)),
    "a stage before its beginning": ("progress", put("progress", "begun", False)),
    "half an epoch": ("progress", put("progress", "epoch", 0.5)),
    "less than no steps": ("progress", put("progress", "step", -1)),
    "a loss that is no number": ("progress", put("progress", "best", NAN)),
    "sums of text": ("progress", put("progress", "sums", {"nll": "low"})),
}
WRONG_FOR_SGD = {
    "another shape of momentum": ("optimizer", put(*STATE, "momentum_buffer", lambda moment: moment[:-1])),
    "momentum that is no number": ("optimizer", put(*STATE, "momentum_buffer", with_nan)),
    "moments of another optimiser": ("optimizer", put(*STATE, "exp_avg", 0.5)),
}
CASES = [*(("adamw", *case) for case in WRONG.items()), *(("sgd", *case) for case in WRONG_FOR_SGD.items())]


def reseal(path: Path, spoil: Callable[[Any], None]) -> None:
    tree = container.read(path, checkpoint.KIND)
    spoil(tree)
    container.write(path, tree, checkpoint.KIND)


@pytest.mark.parametrize(("optimizer", "name", "case"), CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES])
def test_resume_skips_a_sealed_checkpoint_no_run_wrote(
    optimizer: str, name: str, case: tuple[str, Callable[[Any], None]], runs: Any, tmp_path: Path
) -> None:
    (folder, whole), (part, spoil) = runs[optimizer], case
    shutil.copytree(folder, tmp_path / "run")
    newest, before = checkpoint.files(tmp_path / "run")
    reseal(newest, spoil)
    at_fault = rf"checkpoint\.safetensors: not a readable checkpoint \(its '{part}' is not usable: .*"
    with pytest.warns(UserWarning, match=at_fault + "resuming from the previous checkpoint"):
        again = fit(tmp_path / "run", optimizer=optimizer, resume=True)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    left = [container.read(path, checkpoint.KIND)["progress"]["epoch"] for path in checkpoint.files(tmp_path / "run")]
    assert left == [3, 2]  # the invalid checkpoint has not replaced the good one
    newest.unlink()
    shutil.copy(folder / before.name, before)
    reseal(before, spoil)
    with pytest.raises(pb.UserError, match=at_fault.replace(r"checkpoint\.", r"checkpoint-1\.")):
        fit(tmp_path / "run", optimizer=optimizer, resume=True)


def test_resume_tests_generators_without_changing_them() -> None:
    state = checkpoint.random_state()
    wrong = {**state, "python": [3, [1, 2, 3], None]}  # found out after those of torch and numpy have been set
    torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002 (the generators that a checkpoint holds)
    before = checkpoint.random_state()
    check_random([state, state])
    with pytest.raises(ValueError):
        check_random([state, wrong])
    after = checkpoint.random_state()
    assert torch.equal(before["torch"], after["torch"])
    assert torch.equal(before["numpy"][1], after["numpy"][1])
    assert before["numpy"][2:] == after["numpy"][2:]
    assert before["python"] == after["python"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lr": 0.5}, r"started with lr=0\.01, not 0\.5"),
        ({"batch_size": 8}, "started with batch_size=16, not 8"),
        ({"seed": 4}, "started with seed=3, not 4"),
        ({"epochs": 2}, "started for 3 epochs, not 2"),
    ],
)
def test_resume_keeps_the_settings_of_the_run(
    runs: Any, tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    folder = shutil.copytree(runs["sgd"][0], tmp_path / "run")
    with pytest.raises(pb.UserError, match=complaint):
        fit(folder, optimizer="sgd", resume=True, **change)


def test_resume_refuses_another_method_and_takes_more_epochs(runs: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(runs["sgd"][0], tmp_path / "run")
    settings = {"epochs": 3, "batch_size": 16, "lr": 1e-2, "seed": 3, "keep_best": True, "optimizer": "sgd"}
    with pytest.raises(pb.UserError, match=r"started with method=MeanFieldVI\(.*, not PBN\("):
        pb.fit("pbn", tiny_model(), tiny_data(), val=tiny_data(20), out=folder, resume=True, progress=False, **settings)
    with pytest.raises(pb.UserError, match=r"started with training examples=\d+, not 7"):
        pb.fit(pb.MeanFieldVI(), tiny_model(), tiny_data(7), val=tiny_data(20), out=folder, resume=True, **settings)
    fit(folder, optimizer="sgd", resume=True, epochs=4)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4


@dataclass(frozen=True)
class WithAFunction(pb.Deterministic):
    rule: Callable[[], None] = lambda: None


def test_resume_recognises_a_method_with_functions(tmp_path: Path) -> None:
    """The repr of a function contains its address, which differs between processes."""
    one, same = (WithAFunction(rule=lambda: None) for _ in range(2))
    assert repr(one) != repr(same)
    pb.fit(one, tiny_model(), tiny_data(), epochs=1, out=tmp_path, progress=False)
    pb.fit(same, tiny_model(), tiny_data(), epochs=2, out=tmp_path, progress=False, resume=True)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_resume_keeps_the_schedule_of_older_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of earlier versions had no schedule of their own."""
    method, settings = pb.IVON(hess_decay=0.99), {"batch_size": 16, "progress": False}
    whole = pb.fit(method, tiny_model(), tiny_data(), epochs=2, schedule="constant", **settings)
    monkeypatch.setattr(run, "STAGE_SCHEDULES", "another mark")
    pb.fit(method, tiny_model(), tiny_data(), epochs=1, schedule="constant", out=tmp_path, **settings)
    monkeypatch.undo()
    resumed = pb.fit(method, tiny_model(), tiny_data(), epochs=2, out=tmp_path, resume=True, **settings)
    for ours, theirs in zip(resumed.posterior.moments(), whole.posterior.moments(), strict=True):
        assert torch.equal(ours, theirs)
