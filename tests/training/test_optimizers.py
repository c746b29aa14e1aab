"""Stds have their own learning rate and optimiser."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb

TINY = {"lr": 0.01, "batch_size": 8, "progress": False}


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 6, generator=generator)
    return x, (x[:, 0] > 0).long()


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def test_parameter_groups_never_decay_stds() -> None:
    net = pb.bayesianize(model(), "bbb")
    others, stds = pb.parameter_groups(net, 0.1, 0.2, weight_decay=0.3)
    assert [p is net.posterior.rho for p in stds["params"]] == [True]
    assert (others["lr"], others["weight_decay"], stds["lr"], stds["weight_decay"]) == (0.1, 0.3, 0.2, 0.0)
    torch.optim.AdamW([others, stds]).step()
    with pytest.raises(pb.UserError, match="must be positive"):
        pb.parameter_groups(net, 0.1, -1.0)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_fit_moves_stds_whatever_moves_the_means(optimizer: str, learning_seed: int) -> None:
    start, examples = model(learning_seed), data(learning_seed)
    net = pb.fit(pb.MeanFieldVI(), start, examples, epochs=4, optimizer=optimizer, seed=learning_seed, **TINY)
    found = pb.health(net)
    assert found.std_movement is not None
    assert found.std_movement > 0.1


def test_fit_by_sgd_for_stds_hardly_moves_them() -> None:
    with pytest.warns(UserWarning, match="stds not learned"):
        net = pb.fit(
            pb.MeanFieldVI(), model(), data(), epochs=4, optimizer="sgd", std_optimizer="same", std_lr=1e-4, **TINY
        )
    assert pb.health(net).learned is False


def test_sgd_with_adam_stds_resumes_bit_for_bit(tmp_path: Path) -> None:
    method = pb.MeanFieldVI(beta=0.1)  # a warm-up would depend on the number of epochs

    def train(out: Path, epochs: int, resume: bool = False) -> pb.Network:
        settings = {**TINY, "optimizer": "sgd", "std_lr": 0.01}
        net = pb.fit(method, model(), data(), epochs=epochs, out=out, resume=resume, **settings)
        assert isinstance(net, pb.Network)
        return net

    whole = train(tmp_path / "whole", 3)
    train(tmp_path / "parts", 2)
    resumed = train(tmp_path / "parts", 3, resume=True)
    for ours, theirs in zip(resumed.posterior.moments(), whole.posterior.moments(), strict=True):
        assert torch.equal(ours, theirs)
    assert pb.health(resumed) == pb.health(whole)
