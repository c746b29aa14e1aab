"""SWAG: moments of the trajectory, stages, and batch norm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.posteriors import LowRank, Trajectory

LAYOUT = pb.Layout.of(nn.Linear(4, 3))


def walk(steps: int, rank: int) -> tuple[Trajectory, Tensor, Tensor]:
    """Return a trajectory with random weights (steps, 12) and points (steps, 2)."""
    weights, points = 3 + 0.01 * torch.randn(steps, 12), torch.randn(steps, 2)
    trajectory = Trajectory(LAYOUT, torch.zeros(12), rank, 2)
    for weight, point in zip(weights, points):
        trajectory.mean.data.copy_(weight)
        trajectory.collect(point)
    return trajectory, weights.double(), points


@pytest.mark.parametrize("steps", [3, 4, 9])
def test_swag_gaussian_is_that_of_the_paper(steps: int) -> None:
    """Compares with Eq. 1 of Maddox et al., computed from all collected weights."""
    trajectory, weights, points = walk(steps, rank=4)
    deviations = torch.stack([weights[t] - weights[: t + 1].mean(0) for t in range(steps)])[-4:]
    columns = len(deviations)
    expected = 0.5 * torch.diag(weights.var(0, correction=0)) + deviations.T @ deviations / (2 * (columns - 1))
    gaussian = trajectory.gaussian(scale=1.0)
    covariance = torch.diag(gaussian.std.square()) + gaussian.factor @ gaussian.factor.T
    torch.testing.assert_close(gaussian.mean.double(), weights.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(covariance.double(), expected, rtol=5e-3, atol=1e-8)
    torch.testing.assert_close(trajectory.points, points.mean(0))
    wider = trajectory.gaussian(scale=4.0)
    torch.testing.assert_close(wider.moments()[1], 2 * gaussian.moments()[1])


def test_swag_small_variances_of_large_weights_do_not_cancel() -> None:
    trajectory = Trajectory(LAYOUT, torch.zeros(12), 2, 0)
    values = 100 + 1e-3 * torch.randn(50, 12)
    for value in values:
        trajectory.mean.data.copy_(value)
        trajectory.collect(torch.zeros(0))
    var = values.double().var(0, correction=0)
    torch.testing.assert_close((trajectory.squares / 50).double(), var, rtol=0.05, atol=0)


def test_swag_collects_weights_at_the_end_of_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    collect = Trajectory.collect

    def watch(self: Trajectory, points: Tensor) -> None:
        seen.append((self.mean.detach().clone(), points.clone()))
        collect(self, points)

    monkeypatch.setattr(Trajectory, "collect", watch)
    method = pb.SWAG(swag_epochs=4, rank=3)
    net = pb.fit(method, tiny_model(), tiny_data(), epochs=1, batch_size=16, lr=1e-2, progress=False)
    assert len(seen) == 4
    assert isinstance(net.posterior, LowRank)
    assert net.posterior.factor.shape == (net.layout.size, 3)
    torch.testing.assert_close(net.posterior.mean, torch.stack([weight for weight, _ in seen]).mean(0))
    points = torch.cat([parameter.detach().flatten() for parameter in net.model.parameters()])
    torch.testing.assert_close(points, torch.stack([point for _, point in seen]).mean(0))


def test_swag_collects_at_its_own_learning_rate(tmp_path: Path) -> None:
    method = pb.SWAG(swag_epochs=2, swag_lr=0.003, rank=2)
    settings = {"epochs": 2, "lr": 0.01, "schedule": "cosine", "warmup_epochs": 1.0, "keep_best": True}
    data = {"train": tiny_data(), "val": tiny_data(20)}
    pb.fit(method, tiny_model(), **data, out=tmp_path, batch_size=16, progress=False, **settings)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["train", "train", "collect", "collect"]
    assert [row["lr"] for row in rows[2:]] == [0.003, 0.003]
    assert rows[1]["lr"] < 0.01


def test_swag_only_collects_from_a_trained_network(tmp_path: Path) -> None:
    start = pb.fit("map", tiny_model(), tiny_data(), epochs=1, progress=False)
    pb.fit(pb.SWAG(swag_epochs=2, rank=2), start, tiny_data(), out=tmp_path, progress=False)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["collect", "collect"]


def test_swag_names_mistakes() -> None:
    with pytest.raises(pb.UserError, match="at least 2"):
        pb.SWAG(swag_epochs=1)
    with pytest.raises(pb.UserError, match="at least 2"):
        pb.SWAG(rank=1)
    with pytest.raises(pb.UserError, match="scale must be positive"):
        pb.SWAG(scale=0.0)
