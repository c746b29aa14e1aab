"""Pruning and noise curves."""

from __future__ import annotations

import pytest
import torch

import pocketbayes as pb
from cases import CASES, Case, tiny_data, tiny_model, untrained
from pocketbayes.inference import curves
from pocketbayes.network import members


@pytest.mark.parametrize("by", ["magnitude", "snr"])
def test_pruning_removes_the_least_important_weights_first(by: curves.Criterion) -> None:
    net = pb.bayesianize(tiny_model(), pb.MeanFieldVI(std_init="xavier"))
    mean, std = (moment.detach() for moment in net.posterior.moments())
    score = mean.abs() if by == "magnitude" else mean.abs() / std
    small = curves.pruned(net, 0.6, by)
    kept = small.posterior.moments()[0] != 0
    assert int((~kept).sum()) == round(0.6 * len(mean))
    assert float(score[kept].min()) >= float(score[~kept].max())
    assert torch.equal(small.posterior.moments()[0][kept], mean[kept])
    torch.testing.assert_close(small.posterior.moments()[1], std * kept, rtol=1e-5, atol=0)
    assert torch.equal(net.posterior.moments()[0], mean)


def test_pruning_criteria_differ_and_treat_points_as_certain() -> None:
    mean, std = torch.tensor([1.0, 0.2, 0.0, -3.0]), torch.tensor([10.0, 0.01, 0.0, 0.0])
    assert curves.importance(mean, std).argsort().tolist() == [2, 1, 0, 3]
    assert curves.importance(mean, std, "snr").argsort().tolist() == [2, 0, 1, 3]
    with pytest.raises(pb.UserError, match="pruning criterion 'size'"):
        curves.importance(mean, std, "size")
    with pytest.raises(pb.UserError, match="between 0 and 1"):
        curves.pruned(pb.bayesianize(tiny_model(), pb.VDP()), 1.2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pruning_takes_every_network(case: Case) -> None:
    net = untrained(case)
    small = curves.pruned(net, 0.9)
    for before, after in zip(members(net), members(small)):
        gone = after.posterior.moments()[0] == 0
        assert int(gone.sum()) >= round(0.9 * before.layout.size)
        assert float(after.posterior.moments()[1].detach()[gone].max()) == 0
    probs = pb.predict(small, tiny_data()[0], 2).mean
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs)))


def test_pruning_curve_falls_to_chance(learning_seed: int) -> None:
    model, data = tiny_model(learning_seed), tiny_data(seed=learning_seed)
    net = pb.fit("vdp", model, data, epochs=10, batch_size=16, lr=2e-2, progress=False, seed=learning_seed)
    rows = curves.pruning_curve(net, data, (0.0, 0.3, 1.0), propagation="mean")
    assert [row["pruned"] for row in rows] == [0.0, 0.3, 1.0]
    assert rows[0]["accuracy"] > 0.9
    assert rows[2]["accuracy"] < 0.5


def test_noise_curve_is_relative_to_the_noisiest(learning_seed: int) -> None:
    train = pb.data.load("digits", "train", val_fraction=0.0)
    test = pb.data.load("digits", "test").take(torch.arange(100))
    torch.manual_seed(learning_seed)
    model = pb.models.build("mlp", in_features=64, out_features=10)
    net = pb.fit("vdp", model, train, epochs=3, lr=3e-3, progress=False, seed=learning_seed)
    rows = curves.noise_curve(net, test, (20.0, -6.0))
    assert [row["db"] for row in rows] == [-6.0, 20.0]
    assert rows[0]["accuracy"] < rows[1]["accuracy"]
    assert rows[0]["relative variance"] == 1
    assert rows[1]["relative variance"] == pytest.approx(rows[1]["variance"] / rows[0]["variance"])
    clean = pb.evaluate(net, test)
    assert rows[1]["accuracy"] == pytest.approx(clean["accuracy"], abs=0.05)
