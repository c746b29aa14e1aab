"""`pb.mixture`: all kinds of members, and errors for mismatches."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.base.calibration import Calibration
from pocketbayes.cli import app
from pocketbayes.inference.health import similarity, title

SMALL = {"epochs": 1, "batch_size": 64, "progress": False}


@pytest.fixture(scope="module")
def digits() -> Any:
    return pb.data.load("digits", "train", subset=200)


def model(seed: int, hidden: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return pb.models.build("mlp", in_features=64, hidden=[hidden], out_features=10)


@pytest.fixture(scope="module")
def runs(digits: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp(f"run{seed}") for seed in range(2)]
    for seed, folder in enumerate(folders):
        pb.fit("map", model(seed), digits, seed=seed, out=folder, **SMALL)
    return folders


@pytest.mark.filterwarnings("ignore:members")
def test_mixture_takes_models_runs_and_checkpoints(runs: list[Path], digits: Any) -> None:
    first, second = runs
    checkpoint = next(second.glob("checkpoint*.safetensors"))
    wide = pb.fit("lrt", model(5, hidden=12), digits, **SMALL)
    net = pb.mixture([model(3), wide, first, second / "model.pocket", str(checkpoint), pb.load(first)])
    assert len(net) == 6
    assert all(network.info == pb.load(first).info for network in net)
    x = digits[:][0]
    each = torch.stack([pb.predict(network, x, 1, propagation="mean").probs for network in net])
    torch.testing.assert_close(pb.predict(net, x, 1, propagation="mean").probs, each.mean(0))


def test_mixture_reads_plain_weights_into_a_given_model(tmp_path: Path) -> None:
    torch.save(model(1).state_dict(), tmp_path / "weights.pt")
    net = pb.mixture([tmp_path / "weights.pt", model(2)], model=model(3))
    x = torch.randn(5, 64)
    expected = (model(1)(x).softmax(1) + model(2)(x).softmax(1)) / 2
    torch.testing.assert_close(pb.predict(net, x).probs, expected)
    with pytest.raises(pb.UserError, match="as model="):
        pb.mixture([tmp_path / "weights.pt"])


def test_mixture_of_mixtures_multiplies_weights() -> None:
    nets = [pb.bayesianize(model(seed), "map") for seed in range(3)]
    inner = pb.mixture(nets[:2], [0.25, 0.75])
    assert pb.mixture([inner, nets[2]], [0.4, 0.6]).weights == pytest.approx((0.1, 0.3, 0.6))
    assert pb.mixture([pb.mixture(nets[:2]), nets[2]]).weights is None
    assert pb.mixture([inner, nets[2]]).weights == pytest.approx((1 / 6, 1 / 2, 1 / 3))


def test_mixture_file_round_trip_and_evaluation(runs: list[Path], digits: Any, tmp_path: Path) -> None:
    net = pb.mixture(runs, [0.7, 0.3])
    size = pb.save(net, tmp_path / "big.pocket")
    again = pb.load(tmp_path / "big.pocket")
    assert size == (tmp_path / "big.pocket").stat().st_size
    assert pb.evaluate(again, digits) == pb.evaluate(net, digits)


def test_mixture_refuses_members_that_do_not_fit(runs: list[Path]) -> None:
    one, two = pb.load(runs[0]), pb.load(runs[1])
    info = two.info
    for change, words in (
        ({"classes": 9, "class_names": None}, "number of classes"),
        ({"task": "regression"}, "task"),
        ({"input_shape": (1, 9, 9)}, "input size"),
        ({"mean": (0.1,), "std": (0.2,)}, "preprocessing"),
    ):
        two.info = replace(info, **change)
        with pytest.raises(pb.UserError, match=rf"members 1 .* and 2 .* differ in {words}"):
            pb.mixture([one, two])
    two.info = info
    other = pb.models.build("mlp", in_features=64, hidden=[8], out_features=7)
    with pytest.raises(pb.UserError, match="predict 10 and 7 numbers"):
        pb.mixture([one, other])
    with pytest.raises(pb.UserError, match=r"member 2 .* does not take inputs"):
        pb.mixture([one, pb.models.build("mlp", in_features=60, hidden=[8], out_features=10)])
    real = pb.bayesianize(model(0), "map")
    real.likelihood = pb.GaussianNoise(1.0)
    with pytest.raises(pb.UserError, match="predicts real numbers"):
        pb.mixture([one, real])


def test_mixture_refuses_bad_lists_and_nan(tmp_path: Path) -> None:
    with pytest.raises(pb.UserError, match="at least one"):
        pb.mixture([])
    with pytest.raises(pb.UserError, match="list"):
        pb.mixture("runs/a")
    for nothing in (None, 3, {}, model(0), {"a": model(0)}, iter(())):
        with pytest.raises(pb.UserError, match="a list of at least one network"):
            pb.mixture(nothing)
    for weights in (0.5, ["a", 0.5], [[0.5], [0.5]]):
        with pytest.raises(pb.UserError, match="a list of numbers"):
            pb.mixture([model(0), model(1)], weights)
    for weights in ([1.5, -0.5], [float("nan"), 1.0]):
        with pytest.raises(pb.UserError, match="finite and not negative"):
            pb.mixture([model(0), model(1)], weights)
    with pytest.raises(pb.UserError, match="1 weights for 2"):
        pb.mixture([model(0), model(1)], [1.0])
    with pytest.raises(pb.UserError, match="sum to 1"):
        pb.mixture([model(0), model(1)], [1.0, 1.0])
    with pytest.raises(pb.UserError, match="not a int"):
        pb.mixture([3])
    with pytest.raises(pb.UserError, match="neither"):
        pb.mixture([tmp_path])
    broken = model(0)
    with torch.no_grad():
        next(broken.parameters())[0] = torch.nan
    with pytest.raises(pb.UserError, match=r"member 2 .* NaN"):
        pb.mixture([model(1), broken])


def test_mixture_of_plain_models_is_checked_by_data(digits: Any) -> None:
    wrong = pb.models.build("mlp", in_features=64, hidden=[8], out_features=7)
    with pytest.raises(pb.UserError, match="predict 10 and 7 numbers"):
        pb.mixture([model(0), wrong], data=digits)
    assert len(pb.mixture(model(seed) for seed in range(2))) == 2


def test_mixture_drops_temperatures_that_differ() -> None:
    nets = [pb.bayesianize(model(seed), "map") for seed in range(2)]
    nets[0].calibration = Calibration(temperature=2.0)
    with pytest.warns(UserWarning, match=r"pb.calibrate\(net, val\)"):
        net = pb.mixture(nets)
    assert [network.calibration for network in net] == [None, None]
    assert nets[0].calibration is not None
    nets[1].calibration = Calibration(temperature=2.0)
    assert [network.calibration for network in pb.mixture(nets)] == 2 * [Calibration(temperature=2.0)]


def test_mixture_warns_of_a_member_far_worse_than_the_rest(digits: Any, learning_seed: int) -> None:
    settings = {**SMALL, "epochs": 30, "lr": 1e-2}
    seeds = range(3 * learning_seed, 3 * learning_seed + 2)
    good = [pb.fit("map", model(seed, hidden=32), digits, seed=seed, **settings) for seed in seeds]
    with pytest.warns(UserWarning, match=r"member 3 .* far worse than the rest: error 0\.\d+"):
        pb.mixture([*good, model(3 * learning_seed + 2, hidden=32)], data=digits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.mixture(good, data=digits)


def test_mixture_says_when_members_had_one_start(digits: Any) -> None:
    with pytest.warns(UserWarning, match="share their initial weights"):
        net = pb.mixture([pb.fit("map", model(0), digits, seed=seed, **SMALL) for seed in range(2)])
    assert title(net) == "mixture of point, shared start"
    with pytest.warns(UserWarning, match="same network"):
        pb.mixture([model(0), model(0)])
    assert similarity(pb.mixture([model(0), model(1)])) < 0.3


def test_ensemble_command_writes_one_file(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "big.pocket"
    found = CliRunner().invoke(app, ["ensemble", *map(str, runs), "--weights", "0.5,0.5", "--out", str(out), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["members"] == 2
    assert len(pb.load(out)) == 2
    for args, message in (
        ([*map(str, runs), "--out", str(out)], "exists: add --overwrite"),
        ([*map(str, runs), "--out", str(tmp_path / "b"), "--weights", "a"], "numbers separated by commas"),
        ([str(tmp_path / "nothing"), "--out", str(tmp_path / "b")], "nothing"),
    ):
        wrong = CliRunner().invoke(app, ["ensemble", *args])
        assert wrong.exit_code == 2
        assert message in wrong.stderr
