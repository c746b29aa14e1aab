"""Ensembles: members that differ, and stages of any method run member by member."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.methods.ensemble import reinitialised
from pocketbayes.network import Mixture, members
from pocketbayes.posteriors import LowRank, MeanField


def means(net: pb.network.Net) -> list[Tensor]:
    return [network.posterior.moments()[0].detach() for network in members(net)]


def fit(method: pb.Method, **settings: object) -> pb.network.Net:
    return pb.fit(method, tiny_model(), tiny_data(), epochs=1, batch_size=16, lr=1e-2, progress=False, **settings)


def test_ensemble_keeps_the_given_weights_in_one_member() -> None:
    torch.manual_seed(7)
    first, second, third = means(pb.bayesianize(tiny_model(), pb.Ensemble(members=3)))
    given = pb.bayesianize(tiny_model(), "map").posterior.moments()[0]
    assert torch.equal(first, given)
    for one, two in ((first, second), (second, third)):
        assert float((one - two).abs().min()) > 0


def test_ensemble_draws_fresh_weights_like_the_layers() -> None:
    layer = nn.Linear(100, 200)
    fresh = reinitialised(nn.Sequential(layer))[0].weight.detach()
    assert fresh.shape == layer.weight.shape
    assert float(fresh.abs().max()) < 0.1001  # uniform in +-1 / sqrt(100)
    assert float(fresh.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)


def test_ensemble_members_differ_under_the_runs_seed() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    torch.manual_seed(0)
    first, second = means(pb.bayesianize(model, pb.Ensemble(members=2)))
    assert float((first - second).abs().min()) > 0


def test_ensemble_members_may_share_one_start() -> None:
    method = pb.Ensemble(members=2, reinitialise=False)
    first, second = means(pb.bayesianize(tiny_model(), method))
    assert torch.equal(first, second)
    first, second = means(fit(method))
    assert not torch.equal(first, second)


def test_ensemble_reinitialises_attention_and_recurrent_layers() -> None:
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "lstm": nn.LSTM(8, 4)})
    fresh = reinitialised(model)
    assert not torch.equal(fresh["attention"].in_proj_weight, model["attention"].in_proj_weight)
    assert not torch.equal(fresh["lstm"].weight_hh_l0, model["lstm"].weight_hh_l0)


def test_ensemble_predicts_the_mean_of_its_members() -> None:
    net = fit(pb.Ensemble(members=3))
    x = tiny_data()[0]
    each = torch.stack([pb.predict(network, x).probs for network in members(net)])
    together = pb.predict(net, x)
    torch.testing.assert_close(together.probs, each.mean(0))
    assert float(together.epistemic.min()) > 0


def test_ensemble_trains_members_by_their_own_objective(tmp_path: Path) -> None:
    method = pb.Ensemble(
        members=2, method=pb.MeanFieldVI(propagation="local", std_init=0.05, beta=1.0, train_samples=2)
    )
    net = fit(method, out=tmp_path)
    assert all(isinstance(network.posterior, MeanField) for network in members(net))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["member 1 train", "member 2 train"]
    for row in rows:
        assert row["kl"] > 0
        assert row["loss"] == pytest.approx(row["nll"] + row["kl"] / 48)


def test_ensemble_runs_several_stages_per_member() -> None:
    """MultiSWAG."""
    method = pb.Ensemble(members=2, method=pb.SWAG(swag_epochs=2, rank=2))
    net = fit(method)
    assert isinstance(net, Mixture)
    assert all(isinstance(network.posterior, LowRank) for network in net)
    assert not torch.equal(*means(net))


def test_ensemble_takes_methods_of_several_stages() -> None:
    net = pb.fit("map", tiny_model(), tiny_data(), epochs=1, batch_size=16, progress=False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    method = pb.Ensemble(members=2, reinitialise=False, method=pb.PBN(rate=0.2, train_samples=1))
    pair = pb.fit(method, net, tiny_data(), epochs=1, batch_size=16, progress=False)
    assert not torch.equal(*means(pair))
    assert all(network.census().random == round(0.2 * network.layout.size) for network in members(pair))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_ensemble_gives_each_member_its_own_noise() -> None:
    x, y = torch.randn(32, 4), torch.randn(32)
    given = pb.GaussianNoise("learned")
    settings = {"epochs": 1, "lr": 0.1, "optimizer": "sgd", "progress": False}
    net = pb.fit(pb.Ensemble(members=2), nn.Linear(4, 1), (x, y), likelihood=given, **settings)
    one, two = (network.likelihood.raw for network in members(net))
    assert not torch.equal(one, two)
    assert torch.equal(given.raw, pb.GaussianNoise("learned").raw)


def test_ensemble_takes_member_methods_by_name() -> None:
    assert isinstance(
        members(pb.bayesianize(tiny_model(), pb.Ensemble(members=1, method="bbb")))[0].posterior, MeanField
    )


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


def test_ensemble_names_mistakes() -> None:
    with pytest.raises(pb.UserError, match="'weight' cannot be reinitialised"):
        pb.bayesianize(Bare(), pb.Ensemble(members=2))
    pb.bayesianize(Bare(), pb.Ensemble(members=2, reinitialise=False))
    with pytest.raises(pb.UserError, match="reinitialise=False"):
        pb.bayesianize(pb.bayesianize(tiny_model(), "map"), pb.Ensemble(members=2))
    with pytest.raises(pb.UserError, match="settings of its method"):
        pb.Ensemble(bayesian_bias=True)
    with pytest.raises(pb.UserError, match="between 1 and"):
        pb.Ensemble(members=0)
    with pytest.raises(pb.UserError, match="more members"):
        pb.Ensemble(method=pb.Ensemble())
    with pytest.raises(pb.UserError, match="unknown method"):
        pb.Ensemble(method="nothing")


def test_ensemble_member_alone_equals_that_of_the_ensemble(tmp_path: Path) -> None:
    """For a method with noise and several stages."""
    for base in (pb.MeanFieldVI(std_init=0.1), pb.SWAG(swag_epochs=2, rank=2)):
        whole = pb.Ensemble(members=3, method=base)
        together = members(fit(whole, seed=2))
        for number in range(3):
            (alone,) = members(fit(whole.member(number), seed=2))
            for name, value in alone.state_dict().items():
                assert torch.equal(value, together[number].state_dict()[name]), (base, number, name)
