"""Health distinguishes learned stds from those at their initial values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.posteriors.health import FirstStds, rank_correlation


def network(**settings: object) -> pb.Network:
    torch.manual_seed(0)
    net = pb.bayesianize(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)), "bbb", **settings)
    assert isinstance(net, pb.Network)
    return net


def test_health_of_untouched_stds_is_not_learned() -> None:
    found = pb.health(network(std_init="xavier"))
    assert found.learned is False
    assert found.std_rank_correlation == pytest.approx(1)
    assert found.std_movement == 0


def test_health_of_redrawn_stds_is_learned() -> None:
    net = network(std_init="xavier")
    with torch.no_grad():
        net.posterior.rho.copy_(torch.randn_like(net.posterior.rho) - 4)
    found = pb.health(net)
    assert found.learned is True
    assert abs(found.std_rank_correlation or 1) < 0.2


def test_health_of_a_network_without_stds_is_unknown() -> None:
    assert pb.health(pb.bayesianize(nn.Linear(3, 2), "map")) == pb.Health()


def test_health_of_dropout_does_not_claim_learning() -> None:
    x, y = torch.randn(40, 5), torch.arange(40) % 3
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    found = pb.health(pb.fit("mc-dropout", model, (x, y), epochs=2, lr=0.1, progress=False))
    assert found.learned is None
    assert found.snr is not None


def test_rank_correlation_of_a_constant_start() -> None:
    assert rank_correlation(torch.ones(5), torch.ones(5)) == 1
    assert rank_correlation(torch.arange(5.0), torch.ones(5)) == 0


def test_first_stds_keep_a_bounded_sample() -> None:
    net = pb.bayesianize(nn.Linear(100, 100), "bbb")
    first = FirstStds.of(net.posterior)
    assert first is not None
    assert len(first.positions) == 4096
    assert int(first.positions[-1]) == 9999


def test_health_is_kept_in_the_file_without_the_first_stds(tmp_path: Path) -> None:
    x = torch.randn(32, 20, generator=torch.Generator().manual_seed(0))
    net = pb.fit("lrt", network().to_module(), (x, (x[:, 0] > 0).long()), epochs=2, batch_size=8, progress=False)
    pb.save(net, tmp_path / "net.pocket")
    loaded = pb.load(tmp_path / "net.pocket", network().to_module())
    assert pb.health(loaded) == pb.health(net)
    assert pb.health(net).std_movement is not None
    assert loaded.first_stds is None


def test_health_of_a_mixture_is_the_mean_of_its_members() -> None:
    nets = [network(std_init="xavier"), network(std_init="xavier")]
    with torch.no_grad():
        nets[0].posterior.rho.add_(1)
    found = pb.health(pb.Mixture(nets))
    assert found.learned is False
    assert found.std_movement == pytest.approx((pb.health(nets[0]).std_movement or 0) / 2)
