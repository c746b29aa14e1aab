"""The calibration factor of variances, and the search for the weight of the KL."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes import recipes as config
from pocketbayes.cli import app
from pocketbayes.inference.calibration import fit_variance_scale
from pocketbayes.recipes.experiment import run
from pocketbayes.training.beta_search import search_beta


def regression(std: float) -> tuple[pb.Network, torch.Tensor]:
    """Return y = x w with a new w ~ N(0, 1) for every example, and a network with another std."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=std))
    net.likelihood = pb.GaussianNoise(0.1)
    return net, torch.randn(4000, 1)


@pytest.mark.parametrize("propagation", ["moments", "linear"])
def test_variance_scale_of_a_regression_matches_the_data(propagation: str) -> None:
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
def test_variance_scale_of_a_classifier_is_the_best_of_a_grid(propagation: str, readout: str) -> None:
    x, y = tiny_data()
    model = tiny_model().eval()
    with torch.no_grad():  # a confident classifier with some wrong labels
        model.head.weight.mul_(20)
        y = torch.where(torch.arange(48) % 5 > 0, model(x).argmax(1), y)
    net = pb.bayesianize(model, pb.VDP(std_init=0.1))
    settings = {"propagation": propagation, "readout": readout}
    factor = fit_variance_scale(net, (x, y), **settings)
    best = pb.evaluate(net, (x, y), variance_scale=factor, **settings)["nll"]
    for other in (0.001, 0.1, 0.5 * factor, 1.0, 2 * factor, 10.0):
        assert best <= pb.evaluate(net, (x, y), variance_scale=other, **settings)["nll"] + 1e-3


def test_variance_scale_needs_a_variance() -> None:
    net = pb.bayesianize(tiny_model(), pb.VDP())
    with pytest.raises(pb.UserError, match="variance_scale"):
        pb.predict(net, tiny_data()[0], propagation="sample", variance_scale=2.0)
    with pytest.raises(pb.UserError, match="no output variance"):
        fit_variance_scale(pb.bayesianize(tiny_model(), pb.Deterministic()), tiny_data())


def test_beta_search_finds_a_weight_that_holds() -> None:
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


@pytest.mark.parametrize("by", ["calibrated_nll", "pruned_accuracy", "ood_auroc"])
def test_beta_search_decides_by_the_given_criterion(by: str) -> None:
    data = tiny_data()
    ood = {"ood": data} if by == "ood_auroc" else {}
    settings = {"betas": (0.01, 0.1), "lr": 1e-2, "progress": False, "samples": 2, **ood}
    found = search_beta(pb.MeanFieldVI(), tiny_model(), data, data, by=by, **settings)
    first = {trial.beta: trial.score for trial in found.trials[:2]}
    assert found.beta == min(sorted(first), key=first.__getitem__)
    assert all(-1 <= score <= 0 for score in first.values()) == (by != "calibrated_nll")


def test_beta_search_takes_a_function_of_the_network() -> None:
    data = tiny_data()
    wider = {"betas": (0.01, 0.1), "lr": 1e-2, "progress": False, "samples": 2, "by": lambda net: -net.prior.std}
    found = search_beta(pb.MeanFieldVI(prior_std=1.0), tiny_model(), data, data, **wider)
    assert {trial.score for trial in found.trials} == {-1.0}


def test_beta_search_refuses_criteria_that_do_not_fit() -> None:
    x = torch.linspace(-1, 1, 8)[:, None]
    settings = {"betas": (0.1,), "progress": False}
    with pytest.raises(pb.UserError, match="criterion"):
        search_beta(pb.VDP(), tiny_model(), tiny_data(), tiny_data(), by="luck", **settings)
    with pytest.raises(pb.UserError, match="given together"):
        search_beta(pb.VDP(), tiny_model(), tiny_data(), tiny_data(), by="ood_auroc", **settings)
    with pytest.raises(pb.UserError, match="needs a classifier"):
        search_beta(pb.MeanFieldVI(), torch.nn.Linear(1, 1), (x, x), (x, x), by="calibrated_nll", **settings)


def test_beta_search_takes_regressions() -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    data = x, x**2
    method = pb.MeanFieldVI(prior_std=0.01)
    found = search_beta(method, torch.nn.Linear(1, 1), data, data, betas=(0.01, 1.0), lr=1e-2, progress=False)
    assert [trial.beta for trial in found.trials[:2]] == [0.01, 1.0]
    assert all(math.isfinite(trial.nll) for trial in found.trials)


def test_beta_search_needs_a_variational_method() -> None:
    with pytest.raises(pb.UserError, match="'map' has no KL weight"):
        search_beta(pb.Deterministic(), tiny_model(), tiny_data(), tiny_data())
    with pytest.raises(pb.UserError, match="keep"):
        search_beta(pb.VDP(), tiny_model(), tiny_data(), tiny_data(), keep=1.0)


def recipe(tmp_path: Path, **changes: object) -> config.Recipe:
    x, y = tiny_data()
    np.savez(tmp_path / "tiny.npz", x=x.flatten(1).numpy(), y=y.numpy())
    tree = {
        "method": "vdp",
        "model": {"name": "mlp", "hidden": [8]},
        "data": {"name": str(tmp_path / "tiny.npz"), "val_fraction": 0.25},
        "training": {"epochs": 1, "batch_size": 16, "lr": 1e-2},
        "search": {"betas": [0.01, 1e6], "epochs": 1},
    }
    return config.check({**tree, **changes})


def test_beta_search_in_a_recipe_sets_the_weight(tmp_path: Path) -> None:
    outcome = run(recipe(tmp_path), tmp_path / "run", progress=False)
    assert outcome.recipe.search is None
    written = config.read(tmp_path / "run")
    assert written.method.settings == {"beta": 0.01}
    assert written.search is None
    again = run(recipe(tmp_path), tmp_path / "run", resume=True, progress=False)
    assert again.recipe.method == outcome.recipe.method


def test_beta_search_needs_validation_data_and_a_kl(tmp_path: Path) -> None:
    data = {"name": str(tmp_path / "tiny.npz"), "val_fraction": 0.0}
    with pytest.raises(pb.UserError, match="val_fraction"):
        run(recipe(tmp_path, data=data), tmp_path / "run", progress=False)
    with pytest.raises(pb.UserError, match="'map' has no KL weight"):
        run(recipe(tmp_path, method="map"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(pb.UserError, match="keep"):
        recipe(tmp_path, search={"keep": 2})


def test_beta_search_runs_from_the_command_line(tmp_path: Path) -> None:
    recipe(tmp_path)
    arguments = ["train", "--method", "vdp", "--model", "mlp", "--data", str(tmp_path / "tiny.npz"), "--epochs", "1"]
    arguments += ["--search-beta", "--set", "search.betas=[0.5]", "--set", "data.val_fraction=0.25"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert config.read(tmp_path / "run").method.settings["beta"] == 0.5
