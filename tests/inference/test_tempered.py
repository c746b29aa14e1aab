"""Calibrated metrics from running sums agree with those from all probabilities."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import pocketbayes as pb
from pocketbayes.inference.metrics import Tempered, calibrated_nll
from pocketbayes.inference.metrics.calibration import temperature
from pocketbayes.inference.metrics.tempered import TEMPERATURES, fit_temperature


def overconfident(n: int = 2000) -> tuple[torch.Tensor, torch.Tensor]:
    """Return predictions with a known optimal temperature of 3."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return (3 * logits).softmax(1), labels


def test_tempered_nll_is_fitted_on_the_other_half() -> None:
    probs, labels = overconfident()
    measures = Tempered(5)
    for p, y in zip(probs.split(100), labels.split(100)):
        measures.update(p, y)
    total = 0.0
    for fitted, measured in ((0, 1), (1, 0)):
        best = temperature(probs[fitted::2].log(), labels[fitted::2])
        total += float(F.cross_entropy(probs[measured::2].log() / best, labels[measured::2]))
    assert measures.compute()["calibrated_nll"] == pytest.approx(total / 2, rel=1e-3)
    assert calibrated_nll(probs, labels) == pytest.approx(total / 2, rel=1e-3)
    assert measures.temperature() == pytest.approx(3, rel=0.2)
    assert measures.compute()["calibrated_ece"] < 0.05


def test_fit_temperature_interval_is_the_likelihoods() -> None:
    curve = 200 * (TEMPERATURES.log() - 0.5).square()
    found = fit_temperature(curve)
    half = (1.92 / 200) ** 0.5
    assert (found.value, found.best) == pytest.approx((math.exp(0.5),) * 2, rel=0.01)
    assert (found.low, found.high) == pytest.approx((math.exp(0.5 - half), math.exp(0.5 + half)), rel=0.01)


def test_fit_temperature_takes_little_from_few_examples() -> None:
    found = fit_temperature(2 * (TEMPERATURES.log() + 1.1).square())  # best at 0.33, 1 well inside the interval
    assert found.cautious
    assert found.value == pytest.approx(min(1.0, found.high))


def test_tempered_keeps_the_nll_of_few_sure_answers() -> None:
    probs = torch.tensor([[0.9, 0.1]] * 9 + [[0.6, 0.4]])  # all correct: no finite temperature is optimal
    measures = Tempered(2)
    measures.update(probs, torch.zeros(10))
    raw = float(F.nll_loss(probs.log(), torch.zeros(10, dtype=torch.long)))
    assert measures.compute()["calibrated_nll"] == pytest.approx(raw, rel=1e-3)


def test_tempered_shards_merge_to_the_whole() -> None:
    probs, labels = overconfident(400)
    whole, first, second = Tempered(5), Tempered(5), Tempered(5)
    whole.update(probs, labels)
    first.update(probs[:200], labels[:200])
    second.update(probs[200:], labels[200:])
    first.merge(second)
    assert first.compute() == pytest.approx(whole.compute())


def test_tempered_pixels_leave_out_the_ignored_label() -> None:
    probs, labels = overconfident(512)
    maps = probs.view(2, 16, 16, 5).movedim(-1, 1)
    ignoring, without = Tempered(5, ignore_index=4), Tempered(5)
    ignoring.update(maps, labels.view(2, 16, 16))
    without.update(probs[labels != 4], labels[labels != 4])
    assert ignoring.compute() == pytest.approx(without.compute())


def test_evaluate_adds_calibrated_and_epistemic_measures() -> None:
    torch.manual_seed(0)
    net = pb.bayesianize(torch.nn.Linear(4, 3), "bbb", std_init=0.5)
    found = pb.evaluate(net, (torch.randn(50, 4), torch.randint(0, 3, (50,))), samples=5)
    assert 0 < found["epistemic_share"] < 1
    assert found["epistemic_share"] == pytest.approx(found["epistemic"] / found["entropy"])
    assert {"calibrated_nll", "calibrated_ece"} <= set(found)


def test_evaluate_counts_networks_of_equal_worth() -> None:
    net = pb.bayesianize(torch.nn.Linear(4, 3), "map")
    data = torch.randn(50, 4), torch.randint(0, 3, (50,))
    own = pb.evaluate(net, data)["calibrated_nll"]
    assert pb.evaluate(net, data, curve=[own + 0.2, own + 0.1, own - 0.1])["dee"] == pytest.approx(2.5)


def test_evaluate_has_no_equivalents_for_regressions() -> None:
    net = pb.bayesianize(torch.nn.Linear(4, 1), "map")
    net.likelihood = pb.GaussianNoise()
    with pytest.raises(pb.UserError, match="curve compares classifiers"):
        pb.evaluate(net, (torch.randn(50, 4), torch.randn(50, 1)), curve=[0.3])
