"""A user's likelihood needs only `nll`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.likelihoods import LIKELIHOODS, Likelihood

SETTINGS = {"epochs": 2, "progress": False, "lr": 1e-2}


class Counts(Likelihood):
    """A Poisson likelihood whose outputs are log rates."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.shift = nn.Parameter(torch.zeros(()))

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        rate = output[:, 0] * self.scale + self.shift
        return nn.functional.poisson_nll_loss(rate, target.float(), full=False)


class Rates(Counts):
    """The same likelihood with `moments`."""

    name = "rates"

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        rate = (output * self.scale + self.shift).exp()
        return rate, rate.sqrt()

    def measures(self, mean: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"absolute error": (mean[:, 0] - target).abs()}


def counts(n: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, n)[:, None]
    return x, (2 * x[:, 0]).exp().round().long()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def test_likelihood_subclass_is_registered():
    assert LIKELIHOODS["Counts"] is Counts
    assert LIKELIHOODS["rates"] is Rates


@pytest.mark.parametrize("kind", [Counts, Rates])
def test_likelihood_with_nll_alone_trains_saves_and_exports(tmp_path, kind):
    data = counts()
    net = pb.fit(pb.MeanFieldVI(), model(), data, val=data, likelihood=kind(2.0), out=tmp_path, **SETTINGS)
    loaded = pb.load(tmp_path, model())
    assert type(loaded.likelihood) is kind
    assert loaded.likelihood.scale == 2.0
    assert torch.equal(loaded.likelihood.shift, net.likelihood.shift)
    one, two = (pb.predict(each, data[0], samples=3) for each in (net, loaded))
    assert torch.equal(one.mean, two.mean)
    assert pb.evaluate(net, data) == pb.evaluate(loaded, data)


def test_likelihood_subclass_decides_what_is_predicted():
    net = pb.bayesianize(model(), pb.MeanFieldVI())
    x, y = counts()
    net.likelihood = Rates()
    prediction = pb.predict(net, x, samples=5)
    assert bool((prediction.mean > 0).all())
    assert torch.allclose(prediction.std, (prediction.epistemic**2 + prediction.aleatoric**2).sqrt())
    measures = pb.evaluate(net, (x, y), samples=5)
    assert measures["absolute error"] == pytest.approx(float((prediction.mean[:, 0] - y).abs().mean()), rel=1e-4)


@pytest.mark.parametrize("propagation", ["mean", "sample", "moments", "linear"])
def test_likelihood_with_nll_alone_predicts(propagation):
    net = pb.bayesianize(model(), pb.MeanFieldVI(std_init=1e-4))
    net.likelihood = Counts()
    x, y = counts()
    prediction = pb.predict(net, x, samples=3, propagation=propagation)
    assert bool(prediction.entropy.isfinite().all())
    assert float(prediction.aleatoric.max()) == 0
    measures = pb.evaluate(net, (x, y), samples=3, propagation=propagation)
    assert measures["nll"] == pytest.approx(Counts().nll(prediction.mean, y).item(), abs=1e-2)


def test_evaluate_averages_the_density_of_a_users_likelihood():
    net = pb.bayesianize(model(), pb.MeanFieldVI(std_init=0.5))
    net.likelihood = Counts()
    x, y = counts()
    expected = pb.evaluate(net, (x, y), samples=64)["nll"]
    with torch.no_grad():
        density = torch.stack([Counts().log_density(net(x), y) for _ in range(2000)]).logsumexp(0) - math.log(2000)
    assert expected == pytest.approx(-float(density.mean()), rel=0.2)


def test_likelihood_without_a_name_is_saved_as_its_parent(tmp_path):
    class Smoothed(pb.Categorical):
        def nll(self, output: Tensor, target: Tensor) -> Tensor:
            return nn.functional.cross_entropy(output, target, label_smoothing=0.1)

    x, y = counts()
    net = pb.fit("map", nn.Linear(1, 8), (x, y), likelihood=Smoothed(), **SETTINGS)
    pb.save(net, tmp_path / "net.pocket")
    assert type(pb.load(tmp_path / "net.pocket", nn.Linear(1, 8)).likelihood) is pb.Categorical


def test_load_names_a_likelihood_that_was_not_imported(tmp_path):
    net = pb.bayesianize(model(), pb.MeanFieldVI())
    net.likelihood = Counts()
    pb.save(net, tmp_path / "net.pocket")
    kept = LIKELIHOODS.pop("Counts")
    try:
        with pytest.raises(pb.UserError, match="unknown likelihood 'Counts': import the module that defines it first"):
            pb.load(tmp_path / "net.pocket", model())
    finally:
        LIKELIHOODS["Counts"] = kept
