"""Prediction sets and intervals have their coverage, even for miscalibrated networks."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.base.calibration import MOST_SCORES, Conformal


def labelled(count: int, seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=made)
    noisy = x @ torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]]) + torch.randn(count, 3, generator=made)
    return x, noisy.argmax(1)


def overconfident() -> pb.Network:
    """Return a classifier whose logits are ten times too large."""
    model = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(10 * torch.tensor([[1.0, 0, 0, 0.5], [0, 1, 0, 0.5], [0, 0, 1, 0]]))
    return pb.bayesianize(model, "map")


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_sets_cover_level_of_an_overconfident_network(level: float) -> None:
    net = overconfident()
    x, y = labelled(20_000, 1)
    plain = pb.predict(net, x).sets(level).gather(1, y[:, None]).float().mean()
    assert plain < level - 0.05  # its probabilities are overconfident
    pb.fit_conformal(net, labelled(8000, 2))
    covered = pb.predict(net, x).sets(level).gather(1, y[:, None]).float().mean()
    assert level - 0.03 < covered < level + 0.04


def regression(count: int, seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=made)
    return x, x.sum(1, keepdim=True) + torch.randn(count, 1, generator=made).pow(3)  # noise with heavy tails


def test_intervals_cover_level_whatever_the_noise() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    net = pb.bayesianize(model, "map")
    net.likelihood = pb.GaussianNoise(0.1)
    x, y = regression(20_000, 1)
    low, high = pb.predict(net, x).interval(0.9)
    assert ((low <= y) & (y <= high)).float().mean() < 0.7
    net = pb.calibrate(net, regression(8000, 2))
    low, high = pb.predict(net, x).interval(0.9)
    assert 0.87 < ((low <= y) & (y <= high)).float().mean() < 0.93


def test_gaussian_interval_without_held_out_data() -> None:
    net = pb.bayesianize(nn.Linear(2, 1), "map")
    net.likelihood = pb.GaussianNoise(2.0)
    answer = pb.predict(net, torch.zeros(3, 2))
    low, high = answer.interval(0.95)
    torch.testing.assert_close(high - low, torch.full((3, 1), 2 * 1.959964 * 2))
    with pytest.raises(pb.UserError, match="interval"):
        answer.sets()
    with pytest.raises(pb.UserError, match="between 0 and 1"):
        answer.interval(95)


def test_saved_network_keeps_its_scores(tmp_path: Path) -> None:
    net = pb.fit_conformal(overconfident(), labelled(200, 2))
    pb.save(net, tmp_path / "net.pocket")
    again = pb.load(tmp_path / "net.pocket", nn.Linear(4, 3, bias=False))
    x, _ = labelled(50, 3)
    assert torch.equal(pb.predict(again, x).sets(0.9), pb.predict(net, x).sets(0.9))


def test_quantile_promises_only_what_it_can() -> None:
    few = Conformal.of("real", [1.0, 2.0, 3.0, 4.0])
    assert (few.quantile(0.8), few.quantile(0.81), few.quantile(0.2)) == (4.0, math.inf, 1.0)
    many = Conformal.of("real", list(range(1, 100_001)))
    assert len(many.scores) == MOST_SCORES
    assert 90_001 <= many.quantile(0.9) <= 90_200  # rounded up, never down


def test_prediction_prints_as_table() -> None:
    net = overconfident()
    net.info = pb.data.Info("three", "classification", 3, ("red", "green", "blue"), (4,))
    text = repr(pb.predict(net, torch.eye(4)[[0, 1, 2] * 4]))
    assert "Prediction of 3 classes for 12 inputs" in text
    assert "green" in text
    assert "tensor(" not in text
    assert text.endswith("... and 4 more")


@pytest.mark.parametrize("is_kept", [True, False])
def test_calibrate_runs_the_network_once(is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, val = pb.bayesianize(overconfident().to_module(), "bbb"), labelled(600, 2)
    expected = pb.calibrate(net, val, samples=3, seed=1)
    if not is_kept:
        monkeypatch.setattr("pocketbayes.inference.calibration.MAX_KEPT_VALUES", 1000)
    seen: list[int] = []
    net.model.register_forward_hook(lambda _, inputs, output: seen.append(len(inputs[0])))
    calibrated = pb.calibrate(net, val, samples=3, seed=1)
    assert calibrated.conformal == expected.conformal
    assert calibrated.calibration == expected.calibration
    rows = sum(count for count in seen if count > 2)  # two examples tell the kind of output
    assert rows == (600 if is_kept else 1200)  # all draws of a linear layer run as one
