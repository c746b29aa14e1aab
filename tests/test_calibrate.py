"""The calibration factor of variances, and the search for the weight of the KL."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.calibrate import fit_variance_scale
from pocketbayes.search import search_beta


def regression(std: float) -> tuple[pb.Network, torch.Tensor]:
    """y = x w with w ~ N(0, 1) drawn anew for every example; the network's std is another."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=std))
    net.likelihood = pb.GaussianNoise(0.1)
    return net, torch.randn(4000, 1)


@pytest.mark.parametrize("propagation", ["moments", "linear"])
def test_the_factor_of_a_regression_is_the_one_of_the_data(propagation: str) -> None:
    net, x = regression(0.5)
    y = x * torch.randn(4000, 1)
    factor = fit_variance_scale(net, (x, y), propagation=propagation)
    assert factor == pytest.approx(1 / 0.5**2, rel=0.1)
    one, two = (
        pb.evaluate(net, (x, y), propagation=propagation, variance_scale=scale)["log_likelihood"]
        for scale in (1, factor)
    )
    assert two > one


@pytest.mark.parametrize("propagation", ["moments", "moments-full", "linear"])
@pytest.mark.parametrize("readout", ["sample", "probit"])
def test_the_factor_of_a_classifier_is_the_best_of_a_grid(propagation: str, readout: str) -> None:
    x, y = tiny_data()
    model = tiny_model().eval()
    with torch.no_grad():  # a sure classifier, of which some labels say that it should not be
        model.head.weight.mul_(20)
        y = torch.where(torch.arange(48) % 5 > 0, model(x).argmax(1), y)
    net = pb.bayesianize(model, pb.VDP(std_init=0.1))
    settings = {"propagation": propagation, "readout": readout}
    factor = fit_variance_scale(net, (x, y), **settings)
    best = pb.evaluate(net, (x, y), variance_scale=factor, **settings)["nll"]
    for other in (0.001, 0.1, 0.5 * factor, 1.0, 2 * factor, 10.0):
        assert best <= pb.evaluate(net, (x, y), variance_scale=other, **settings)["nll"] + 1e-6


def test_what_has_no_variance_is_not_scaled() -> None:
    net = pb.bayesianize(tiny_model(), pb.VDP())
    with pytest.raises(pb.UserError, match="variance_scale"):
        pb.predict(net, tiny_data()[0], propagation="sample", variance_scale=2.0)
    with pytest.raises(pb.UserError, match="no variance"):
        fit_variance_scale(pb.bayesianize(tiny_model(), pb.Deterministic()), tiny_data())


def test_the_search_halves_and_finds_the_weight_that_does_not_collapse() -> None:
    data = tiny_data()
    found = search_beta(
        pb.VDP(prior_std=0.01), tiny_model(), data, data, betas=(0.01, 1e4, 1e5, 1e6), epochs=2, batch_size=16, lr=1e-2,
        progress=False,
    )  # fmt: skip
    assert found.beta == 0.01
    assert [trial.epochs for trial in found.trials] == [2] * 4 + [4] * 2 + [6]
    assert {trial.beta for trial in found.trials[4:]} < {0.01, 1e4, 1e5, 1e6}
    assert found.trials[-1].beta == 0.01
    assert all(math.isfinite(trial.nll) for trial in found.trials)


def test_only_variational_methods_have_a_weight_to_search_for() -> None:
    with pytest.raises(pb.UserError, match="'map' has no weight"):
        search_beta(pb.Deterministic(), tiny_model(), tiny_data(), tiny_data())
    with pytest.raises(pb.UserError, match="keep"):
        search_beta(pb.VDP(), tiny_model(), tiny_data(), tiny_data(), keep=1.0)
