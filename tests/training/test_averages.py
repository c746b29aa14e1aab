"""The average of the parameters that training returns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.training.averages import POWER, RESOLUTION, Averages


def network(values: torch.Tensor) -> pb.Network:
    net = pb.bayesianize(nn.Linear(values.numel(), 1, bias=False), pb.Deterministic())
    assert isinstance(net, pb.Network)
    return net


def moved(net: pb.Network, averages: Averages, path: torch.Tensor) -> None:
    (parameter,) = net.parameters()
    for values in path:
        with torch.no_grad():
            parameter.copy_(values)
        averages.update()


def test_averages_weigh_step_t_by_its_power() -> None:
    path = torch.randn(RESOLUTION - 1, 3, generator=torch.Generator().manual_seed(0))
    net = network(path[0])
    averages = Averages(net)
    moved(net, averages, path)
    weights = torch.arange(len(path) + 1).double().pow(POWER + 1).diff()
    expected = (weights[:, None] * path).sum(0) / weights.sum()
    torch.testing.assert_close(averages.values[0], expected.float(), rtol=1e-4, atol=1e-5)


def test_averages_of_a_long_run_lag_by_a_fraction_and_update_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, calls = 20 * RESOLUTION, []
    lerp = torch._foreach_lerp_
    monkeypatch.setattr(torch, "_foreach_lerp_", lambda *args: calls.append(None) or lerp(*args))
    net = network(torch.zeros(1))
    averages = Averages(net)
    moved(net, averages, torch.arange(1.0, steps + 1)[:, None])
    assert float(averages.values[0]) == pytest.approx(steps * (POWER + 1) / (POWER + 2), rel=0.01)
    assert len(calls) < 5 * RESOLUTION


def test_averages_applied_are_taken_back() -> None:
    net = network(torch.zeros(1))
    averages = Averages(net)
    (parameter,) = net.parameters()
    moved(net, averages, torch.tensor([[1.0], [3.0]]))
    with averages.applied():
        assert 1 < parameter.item() < 3
    assert parameter.item() == 3


def test_averages_restarted_forget_the_past() -> None:
    net = network(torch.zeros(1))
    averages = Averages(net)
    moved(net, averages, torch.full((50, 1), 7.0))
    averages.restart()
    moved(net, averages, torch.tensor([[2.0]]))
    assert float(averages.values[0]) == 2


def test_fit_averages_noisy_steps_away() -> None:
    """At a constant rate the last step of a noisy problem is far from the optimum; the average is close."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 4, generator=generator)
    truth = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    y = x @ truth.T + 2 * torch.randn(2000, 1, generator=generator)
    best = torch.linalg.lstsq(x, y).solution.T

    def distance(seed: int, average: bool) -> float:
        model = nn.Linear(4, 1, bias=False)
        settings = {"epochs": 8, "batch_size": 4, "lr": 0.03, "optimizer": "sgd", "momentum": 0.0}
        net = pb.fit("map", model, (x, y), seed=seed, average=average, progress=False, **settings)
        return (net.to_module().weight - best).norm().item()

    last, averaged = (sum(distance(seed, average) for seed in range(3)) for average in (False, True))
    assert averaged < 0.6 * last


def test_fit_resumed_for_more_epochs_equals_one_run(tmp_path: Path) -> None:
    settings = {"batch_size": 16, "lr": 1e-2, "seed": 3, "progress": False, "checkpoint_steps": 2}
    data = {"train": tiny_data(), "val": tiny_data(20)}
    whole = pb.fit("map", tiny_model(), **data, epochs=4, **settings)
    pb.fit("map", tiny_model(), **data, epochs=2, out=tmp_path, **settings)
    later = pb.fit("map", tiny_model(), **data, epochs=4, out=tmp_path, resume=True, **settings)
    for one, other in zip(whole.state_dict().values(), later.state_dict().values()):
        assert torch.equal(one, other)


def test_fit_without_average_returns_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"epochs": 2, "batch_size": 16, "lr": 1e-2, "seed": 3, "progress": False}
    plain = list(pb.fit("map", tiny_model(), tiny_data(), average=False, **settings).parameters())
    averaged = list(pb.fit("map", tiny_model(), tiny_data(), **settings).parameters())
    assert any(not torch.equal(one, other) for one, other in zip(plain, averaged))
    monkeypatch.setattr(Averages, "apply", lambda self: None)
    last = list(pb.fit("map", tiny_model(), tiny_data(), **settings).parameters())
    assert all(torch.equal(one, other) for one, other in zip(plain, last))
