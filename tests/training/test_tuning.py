"""`fit(tune=True)`: the fastest choice is used, and the user's settings are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.base.errors import UserError
from pocketbayes.training import tuning
from pocketbayes.training.compiling import calling

pytestmark = pytest.mark.filterwarnings("ignore::pocketbayes.posteriors.health.StdsNotLearnedWarning")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(24, 3, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


def fitted(**settings: Any) -> pb.Net:
    settings = {"epochs": 1, "batch_size": 8, "progress": False, **settings}
    return pb.fit(pb.MeanFieldVI(), model(), data(), **settings)


def prefer(monkeypatch: pytest.MonkeyPatch, **choice: Any) -> None:
    """Pretend that steps with this choice take half a second and others one second."""

    def seconds(steps: Mapping[str, Any]) -> dict[str, float]:
        return {name: 0.5 if choice.items() <= json.loads(name).items() else 1.0 for name in steps}

    monkeypatch.setattr(tuning, "medians", seconds)
    monkeypatch.setattr(tuning, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(tuning, "has_compiler", lambda device: True)


def test_tune_off_is_the_default_and_changes_nothing() -> None:
    first, second = fitted(), fitted(tune=False)
    for one, two in zip(first.state_dict().values(), second.state_dict().values()):
        assert torch.equal(one, two)


@pytest.mark.parametrize("choice", [{"channels_last": True}, {"precision": "bf16-mixed"}])
def test_tune_takes_the_fastest_and_reports_it(
    choice: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(monkeypatch, **choice)
    said: list[str] = []
    monkeypatch.setattr("pocketbayes.base.progress.Silent.line", lambda self, text: said.append(text))
    tuned = fitted(tune=True, out=tmp_path)
    assert json.loads((tmp_path / "tuning.json").read_text()) == {**tuning.USUAL, **choice}
    assert f"tuned: {tuning._text({**tuning.USUAL, **choice})}, 2.00 times as fast as without" in said
    by_hand = fitted(**choice)
    for one, two in zip(tuned.state_dict().values(), by_hand.state_dict().values()):
        assert torch.equal(one, two)


def test_tune_keeps_what_the_user_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, channels_last=False)
    fitted(tune=True, channels_last=True, out=tmp_path)
    assert json.loads((tmp_path / "tuning.json").read_text())["channels_last"] is True


def test_tune_is_not_repeated_by_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, channels_last=True)
    fitted(tune=True, out=tmp_path)
    prefer(monkeypatch, precision="bf16-mixed")
    fitted(tune=True, out=tmp_path, epochs=2, resume=True)
    assert json.loads((tmp_path / "tuning.json").read_text()) == {**tuning.USUAL, "channels_last": True}


@pytest.mark.parametrize("text", ["{", "[]", '{"precision": "32-true"}'])
def test_tune_names_a_damaged_record_of_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    prefer(monkeypatch, channels_last=True)
    fitted(tune=True, out=tmp_path)
    (tmp_path / "tuning.json").write_text(text)
    with pytest.raises(pb.UserError, match=r"tuning\.json: not readable choices .*remove it to measure again"):
        fitted(tune=True, out=tmp_path, epochs=2, resume=True)


def test_tune_compiles_only_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, compile=True)
    settings = pb.Training(epochs=1000, batch_size=8)
    source = pb.data.batches.as_source(data())
    assert tuning._measure(pb.MeanFieldVI(), model(), source, settings)[0]["compile"]
    monkeypatch.setattr(tuning, "has_compiler", lambda device: False)
    assert not tuning._measure(pb.MeanFieldVI(), model(), source, settings)[0]["compile"]


def test_tune_measures_real_steps_and_leaves_out_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "has_compiler", lambda device: False)
    own, source = model(), pb.data.batches.as_source(data())
    state = torch.get_rng_state()
    choice, line = tuning.tune_steps(pb.MeanFieldVI(), own, source, pb.Training(batch_size=8), None, resume=False)
    assert choice.keys() == tuning.USUAL.keys()
    assert line.startswith("tuned: channels_last=")
    assert torch.equal(torch.get_rng_state(), state)
    assert tuning.medians({"fails": lambda: 1 / 0, "works": lambda: None}).keys() == {"works"}


def test_tune_of_several_processes_is_refused() -> None:
    with pytest.raises(UserError, match="tune=True measures one process"):
        fitted(tune=True, devices=2)


def test_compiled_call_serves_within_its_block_only() -> None:
    net = pb.bayesianize(model(), pb.MeanFieldVI())
    assert isinstance(net, pb.Network)
    calls: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        calls.append(x)
        return x.new_zeros(len(x), 3)

    x = data()[0]
    with calling(net, call):
        assert not net(x).any()
    assert net(x).any()
    assert len(calls) == 1
