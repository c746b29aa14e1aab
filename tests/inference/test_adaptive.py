"""Adaptive prediction: the stopping rule, its bound, and the predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.inference.stopping import choose_stopping
from pocketbayes.network import Mixture

SETTINGS: dict[str, Any] = {"epochs": 20, "batch_size": 64, "lr": 1e-2, "progress": False}


def digits(split: str) -> tuple[Tensor, Tensor]:
    x, y = pb.data.load("digits", split, val_fraction=0.3)[:]
    return x.flatten(1), y


@pytest.fixture(scope="module")
def mixture(learning_seed: int) -> Mixture:
    """Return five small networks trained on 200 images, which are often wrong and differ."""
    torch.manual_seed(learning_seed)
    model = pb.models.build("mlp", in_features=64, out_features=10, hidden=[16])
    train = tuple(part[:200] for part in digits("train"))
    net = pb.fit(pb.Ensemble(members=5), model, train, seed=learning_seed, **SETTINGS)
    assert isinstance(net, Mixture)
    return net


def test_predict_adaptively_saves_passes_within_the_bound(mixture: Mixture) -> None:
    val, (x, y) = digits("val"), digits("test")
    rule = pb.fit_stopping(mixture, val, max_rise=0.02)
    assert rule.steps == (1, 2, 3, 4, 5)
    assert rule.rise <= 0.02
    found = pb.predict(mixture, x, adaptive=True, batch_size=100)
    assert found.passes is not None
    assert set(found.passes.unique().tolist()) <= {1, 2, 3, 4, 5}
    assert float(found.passes.double().mean()) < 4
    torch.testing.assert_close(found.entropy, found.epistemic + found.aleatoric)
    measures, whole = pb.evaluate(mixture, (x, y), adaptive=True), pb.evaluate(mixture, (x, y))
    assert measures["passes"] == pytest.approx(float(found.passes.double().mean()))
    assert measures["nll"] < whole["nll"] + 0.1


def test_predict_adaptively_agrees_with_brute_force(mixture: Mixture) -> None:
    """The answer is the mean of the first k members at temperature k, for the first k that is confident enough."""
    x = digits("test")[0][:60]
    rule = pb.fit_stopping(mixture, digits("val"), max_rise=0.05)
    found = pb.predict(mixture, x, adaptive=rule, batch_size=7)
    each = torch.stack([pb.predict(network, x).probs for network in mixture])
    assert sorted(rule.order) == [0, 1, 2, 3, 4]
    each = each[list(rule.order)]
    for row in range(len(x)):
        for count in range(1, 6):
            mean = each[:count, row].mean(0)
            probs = (mean.log() / rule.temperatures[count - 1]).softmax(0)
            if float(probs.max()) >= rule.threshold or count == 5:
                break
        assert int(found.passes[row]) == count
        torch.testing.assert_close(found.probs[row], probs, rtol=1e-4, atol=1e-6)


def test_fit_stopping_works_on_draws_of_one_network() -> None:
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=64, out_features=10, hidden=[16])
    train = tuple(part[:200] for part in digits("train"))
    net = pb.fit(pb.MeanFieldVI(std_init=0.3), model, train, **{**SETTINGS, "epochs": 10})
    rule = pb.fit_stopping(net, digits("val"), max_rise=0.05, samples=20)
    assert rule.steps == (1, 2, 4, 8, 16, 20)
    x = digits("test")[0]
    found = pb.predict(net, x, 20, adaptive=True)
    assert set(found.passes.tolist()) <= set(rule.steps)
    with pytest.raises(pb.UserError, match="was fitted for"):
        pb.predict(net, x, 30, adaptive=True)


def test_choose_stopping_never_stops_where_the_bound_forbids() -> None:
    """The first member predicts at random with high confidence."""
    labels = torch.arange(400) % 4
    wrong = torch.eye(4)[torch.randint(4, (400,), generator=torch.Generator().manual_seed(0))] * 6
    right = torch.eye(4)[labels] * 4
    rule = choose_stopping(torch.stack([wrong, right]).softmax(2), labels, [1, 1], 0.0, [1.0, 1.0], reorder=False)
    assert rule.passes == 2
    assert rule.rise == 0


def test_choose_stopping_asks_the_best_member_first() -> None:
    """The second member is correct and the first one random: evaluated first, the second settles everything."""
    labels = torch.arange(400) % 4
    wrong = torch.eye(4)[torch.randint(4, (400,), generator=torch.Generator().manual_seed(0))] * 6
    right = torch.eye(4)[labels] * 4 + torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
    rule = choose_stopping(torch.stack([wrong, right]).softmax(2), labels, [1, 3], 0.05, [1.0, 1.0], reorder=True)
    assert rule.order == (1, 0)
    assert rule.steps == (3, 4)
    assert rule.passes < 3.3


def test_choose_stopping_keeps_a_number_of_passes(mixture: Mixture) -> None:
    rule = pb.fit_stopping(mixture, digits("val"), max_passes=2.5)
    assert 1 <= rule.passes <= 2.5
    more = pb.fit_stopping(mixture, digits("val"), max_passes=4.0)
    assert rule.passes <= more.passes <= 4
    assert more.threshold >= rule.threshold
    with pytest.raises(pb.UserError, match="max_passes"):
        pb.fit_stopping(mixture, digits("val"), max_passes=0.5)


def test_choose_stopping_takes_one_pass_of_equal_members() -> None:
    labels = torch.arange(400) % 4
    logits = torch.eye(4)[labels] * 3 + torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    rule = choose_stopping(torch.stack([logits] * 3).softmax(2), labels, [1, 1, 1], 0.01, [1.0] * 3, reorder=False)
    assert rule.passes < 1.6


def test_stopping_rule_survives_a_file(mixture: Mixture, tmp_path: Path) -> None:
    x = digits("test")[0]
    pb.fit_stopping(mixture, digits("val"))
    pb.save(mixture, tmp_path / "a.pocket")
    again = pb.load(tmp_path / "a.pocket")
    assert torch.equal(pb.predict(again, x, adaptive=True).probs, pb.predict(mixture, x, adaptive=True).probs)


def test_adaptive_prediction_refuses_unsupported_networks(mixture: Mixture) -> None:
    x, y = digits("val")
    plain = Mixture(list(mixture))
    with pytest.raises(pb.UserError, match="fit_stopping"):
        pb.predict(plain, x, adaptive=True)
    with pytest.raises(pb.UserError, match="True or a rule"):
        pb.predict(plain, x, adaptive=0.97)
    with pytest.raises(pb.UserError, match="max_rise"):
        pb.fit_stopping(plain, (x, y), max_rise=-1)
    with pytest.raises(pb.UserError, match="needs only one pass"):
        pb.fit_stopping(next(iter(mixture)), (x, y))
    real = pb.bayesianize(nn.Linear(64, 1), pb.Ensemble(members=2))
    for network in real:
        network.likelihood = pb.GaussianNoise(1.0)
    with pytest.raises(pb.UserError, match="need a classifier"):
        pb.fit_stopping(real, (x, torch.randn(len(x), 1)))
