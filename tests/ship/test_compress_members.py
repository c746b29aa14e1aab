"""Compressing a mixture: number of members and bits."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pocketbayes as pb
from pocketbayes.base.calibration import Calibration
from pocketbayes.files.network_file import Packed
from pocketbayes.network import Mixture, members
from pocketbayes.ship.compression.coding import CODED_PRECISION, Recipe, code, estimate_bytes
from pocketbayes.ship.compression.filling import fill
from pocketbayes.ship.compression.members import Agreement, best_first, measure_prefixes, order_by_worth, prefix
from pocketbayes.ship.compression.trials import NLL_NOISE

WEIGHTS = (0.5, 0.3, 0.2)


@pytest.fixture(scope="module")
def mixture(learning_seed: int) -> Mixture:
    torch.manual_seed(learning_seed)
    train = pb.data.load("digits", "train", subset=300)
    model = pb.models.build("mlp", in_features=64, out_features=10, hidden=[24])
    settings = {"epochs": 10, "batch_size": 32, "lr": 1e-2, "seed": learning_seed, "progress": False}
    net = pb.fit(pb.Ensemble(members=3), model, train, **settings)
    return Mixture(members(net), WEIGHTS)


def test_measure_prefixes_agrees_with_evaluate(mixture: Mixture) -> None:
    val = pb.data.load("digits", "val")
    for count, (nll, accuracy) in enumerate(measure_prefixes(mixture, val, 3, 0).losses, 1):
        expected = pb.evaluate(prefix(mixture, count), val)
        assert nll == pytest.approx(expected["nll"], rel=1e-5)
        assert accuracy == pytest.approx(expected["accuracy"])


def test_order_by_worth_drops_what_the_rest_miss_least(mixture: Mixture) -> None:
    val = pb.data.load("digits", "val")
    order = order_by_worth(mixture, val, 3, 0)
    pairs = [[0, 1], [0, 2], [1, 2]]
    losses = [pb.evaluate(_part(mixture, pair), val)["nll"] for pair in pairs]
    best = pairs[losses.index(min(losses))]
    assert set(order[:2]) == set(best)
    alone = [pb.evaluate(members(mixture)[place], val)["nll"] for place in best]
    assert order[0] == best[alone.index(min(alone))]


def _part(mixture: Mixture, places: list[int]) -> Mixture:
    shares = [WEIGHTS[place] for place in places]
    return Mixture([members(mixture)[place] for place in places], [share / sum(shares) for share in shares])


def test_order_by_worth_of_regressions_uses_densities() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    y = x.sum(1, keepdim=True)
    networks = []
    for error in (3.0, 0.0, 1.0):
        model = torch.nn.Linear(3, 1)
        with torch.no_grad():
            model.weight.fill_(1.0)
            model.bias.fill_(error)
        networks.append(pb.bayesianize(model, "map"))
        networks[-1].likelihood = pb.GaussianNoise(0.5)
    assert order_by_worth(Mixture(networks), (x, y), 1, 0) == [1, 2, 0]


def test_compress_drops_the_worst_member_not_the_last(mixture: Mixture) -> None:
    train, val = pb.data.load("digits", "train", subset=300), pb.data.load("digits", "val")
    torch.manual_seed(1)
    untrained = pb.bayesianize(pb.models.build("mlp", in_features=64, out_features=10, hidden=[24]), "map")
    untrained.info = members(mixture)[0].info
    net = Mixture([untrained, *members(mixture)[:2]])
    found = pb.compress(net, train, val, max_bytes=3500, count=2, progress=False)
    expected = pb.evaluate(Mixture(members(mixture)[:2]), val)["accuracy"]
    assert pb.evaluate(found.net, val)["accuracy"] > expected - 0.1
    assert pb.evaluate(prefix(net, 2), val)["nll"] > found.chosen.nll


def test_best_first_answers_the_same(mixture: Mixture) -> None:
    x, val = torch.rand(5, 1, 8, 8), pb.data.load("digits", "val")
    other = best_first(mixture, val, 3, 0, None)
    order = order_by_worth(mixture, val, 3, 0)
    assert other.weights == pytest.approx([WEIGHTS[place] for place in order])
    torch.testing.assert_close(pb.predict(other, x).probs, pb.predict(mixture, x).probs)
    assert best_first(mixture, val, 3, 0, 3) is mixture


def test_compress_names_members_that_do_not_fit() -> None:
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    wrong = ((torch.nn.Linear(6, 4), "3 and 4 outputs"), (torch.nn.Linear(5, 3), "member 2 does not accept"))
    for other, words in wrong:
        net = pb.mixture([torch.nn.Linear(6, 3), other])
        for ask in (lambda net=net: pb.predict(net, x), lambda net=net: pb.compress(net, (x, y), (x, y), count=2)):
            with pytest.raises(pb.UserError, match=words):
                ask()


def test_compress_keeps_the_temperature_of_a_calibrated_net(mixture: Mixture) -> None:
    train, val = pb.data.load("digits", "train", subset=300), pb.data.load("digits", "val")
    calibrated = copy.deepcopy(mixture)
    for network in calibrated:
        network.calibration = Calibration(temperature=3.0)
    found = pb.compress(calibrated, train, val, max_bytes=6000, count=3, progress=False)
    assert [network.calibration for network in members(found.net)] == 3 * [Calibration(temperature=3.0)]
    assert found.before.nll == pytest.approx(pb.evaluate(calibrated, val)["nll"], rel=1e-4)


def test_first_networks_of_a_packed_mixture_are_its_prefix(mixture: Mixture) -> None:
    packed = Packed.of(mixture)
    for count in (1, 2, 3):
        first, direct = packed.first(count), Packed.of(prefix(mixture, count))
        assert first.networks == count
        assert abs(first.size - direct.size) < 40
        x = torch.rand(5, 1, 8, 8)  # as in training: other values raise a warning
        assert torch.equal(pb.predict(first.unpack(), x).probs, pb.predict(direct.unpack(), x).probs)


def test_compress_fills_a_size_with_members_or_bits(mixture: Mixture, tmp_path: Path) -> None:
    train, val = pb.data.load("digits", "train", subset=300), pb.data.load("digits", "val")
    for budget in (2500, 4500):
        found = pb.compress(mixture, train, val, max_bytes=budget, progress=False)
        assert found.save(tmp_path / "a.pocket") <= budget
        again = pb.load(tmp_path / "a.pocket")
        assert pb.evaluate(again, val)["nll"] == pytest.approx(found.chosen.nll, rel=1e-5)
        assert found.chosen.nll <= min(trial.nll for trial in found.trials if trial.bytes <= budget) + NLL_NOISE
    fillings = [trial.bytes for trial in found.trials if "lam" in trial.how and "members" not in trial.how]
    assert 4000 < max(fillings) <= 4500
    two = pb.compress(mixture, train, val, max_bytes=4500, count=2, progress=False)
    assert len(members(two.net)) == 2
    with pytest.raises(pb.UserError, match="3 members"):
        pb.compress(mixture, train, val, count=4)


def test_compress_keeps_members_on_data_they_have_learned(learning_seed: int) -> None:
    torch.manual_seed(learning_seed)
    train = pb.data.load("digits", "train", subset=200)
    model = pb.models.build("mlp", in_features=64, out_features=10, hidden=[24])
    settings = {"epochs": 40, "batch_size": 32, "lr": 1e-2, "seed": learning_seed, "progress": False}
    net = pb.fit(pb.Ensemble(members=4), model, train, **settings)
    with pytest.warns(UserWarning, match="0 errors on 200 validation examples"):
        found = pb.compress(net, train, train, max_bytes=8000, progress=False)
    assert len(members(found.net)) == 4
    assert 7000 < found.chosen.bytes <= 8000
    x = {"input_ids": torch.zeros(8, 4, dtype=torch.long)}
    assert Agreement.of(net, [(0.1, 1.0)], [x], 1, 0) is None  # only numbers can be blended


def test_fill_comes_close_where_its_estimate_is_wrong(mixture: Mixture) -> None:
    three, limit, tried = Mixture(members(mixture)), 9000, []

    def pack(recipe: Recipe, count: int) -> Any:
        packed = Packed.of(code(prefix(three, count), recipe).net, CODED_PRECISION)
        size = packed.size + int(1500 * count * min(0.01 / recipe.lam, 1))  # a codebook that grows
        return SimpleNamespace(size=size)

    def estimate(recipe: Recipe, count: int) -> float:
        return estimate_bytes(prefix(three, count), recipe)

    fill(Recipe(0.1), limit, [3], estimate, pack, lambda packed, recipe, count: tried.append(packed.size) or 1.0)
    assert 0.9 * limit < tried[0] <= limit


def test_compress_within_a_loss_chooses_members_too(mixture: Mixture, tmp_path: Path) -> None:
    train, val = pb.data.load("digits", "train", subset=300), pb.data.load("digits", "val")
    found = pb.compress(mixture, train, val, out=tmp_path, progress=False)
    counts = {trial.how.get("members", 3) for trial in found.trials if "lam" in trial.how}
    assert counts == {1, 2, 3}
    assert found.chosen.nll <= found.before.nll + 0.01
    again = pb.compress(mixture, train, val, out=tmp_path, progress=False)
    assert [trial.to_json() for trial in again.trials] == [trial.to_json() for trial in found.trials]


def test_compress_reports_disagreement(mixture: Mixture) -> None:
    train, val = pb.data.load("digits", "train", subset=300), pb.data.load("digits", "val")
    found = pb.compress(mixture, train, val, max_bytes=6000, count=3, progress=False)
    answers = [pb.predict(network, val[:][0]).probs.argmax(1) for network in mixture]
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = sum(float((answers[one] != answers[two]).double().mean()) for one, two in pairs) / 3
    assert found.before.disagreement == pytest.approx(expected)
    assert found.chosen.disagreement is not None
    assert found.to_json()["chosen"]["disagreement"] == found.chosen.disagreement
