"""Laplace compared with exact posteriors and with laplace-torch's predictions."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes import likelihoods
from pocketbayes.files import network_file
from pocketbayes.network import Network
from pocketbayes.posteriors import Kronecker, LowRank

NOISE, PRECISION = 0.3, 2.0


def linear_data(n: int = 60, features: int = 5, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, features, generator=generator) * torch.linspace(0.3, 2, features)
    y = x @ torch.randn(features, outputs, generator=generator) + NOISE * torch.randn(n, outputs, generator=generator)
    return x, y


def trained(model: nn.Module, likelihood: likelihoods.Likelihood, **settings: object) -> Network:
    """Return the model as a trained network."""
    net = pb.bayesianize(model, pb.Deterministic(**settings))
    assert isinstance(net, Network)
    net.likelihood = likelihood
    return net


def approximate(net: Network, data: tuple[Tensor, Tensor], **settings: object) -> tuple[Network, Tensor]:
    """Return the network with a Laplace posterior, and its covariance over the random weights."""
    result = pb.fit(pb.Laplace(**{"prior_precision": PRECISION, **settings}), net, data, batch_size=25, progress=False)
    assert isinstance(result, Network)
    posterior = result.posterior
    assert isinstance(posterior, Kronecker if settings.get("hessian") == "kron" else LowRank)
    random = posterior.moments()[1] > 0
    directions = posterior.project(torch.eye(result.layout.size)[random])
    return result, directions @ directions.T


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("hessian", ["full", "kron", "diag"])
def test_laplace_is_exact_for_linear_regression(hessian: str, outputs: int) -> None:
    x, y = linear_data(outputs=outputs)
    model = nn.Linear(5, outputs, bias=False)
    precision = x.T @ x / NOISE**2 + PRECISION * torch.eye(5)
    model.weight.data = torch.linalg.solve(precision, x.T @ y / NOISE**2).T
    net, covariance = approximate(trained(model, pb.GaussianNoise(NOISE)), (x, y), hessian=hessian)
    block = torch.diag(1 / precision.diagonal()) if hessian == "diag" else precision.inverse()
    torch.testing.assert_close(covariance, torch.block_diag(*[block] * outputs), rtol=1e-3, atol=1e-7)
    assert torch.equal(net.posterior.mean, model.weight.data.flatten())
    prediction = pb.predict(net, x[:6], 2000)
    epistemic = (x[:6] @ block * x[:6]).sum(1).sqrt()
    torch.testing.assert_close(prediction.epistemic, epistemic[:, None].expand(-1, outputs), rtol=0.1, atol=0)
    torch.testing.assert_close(prediction.std, (prediction.epistemic.square() + NOISE**2).sqrt())


def test_laplace_covers_a_random_bias_of_the_last_layer() -> None:
    x, y = linear_data()
    model = nn.Linear(5, 1)
    ones = torch.cat([x, torch.ones(60, 1)], 1)
    likelihood = pb.GaussianNoise(NOISE)
    _, covariance = approximate(trained(model, likelihood, bayesian_bias=True), (x, y))
    expected = (ones.T @ ones / NOISE**2 + PRECISION * torch.eye(6)).inverse()
    torch.testing.assert_close(covariance, expected, rtol=1e-3, atol=1e-7)
    _, covariance = approximate(trained(model, likelihood), (x, y))
    expected = (x.T @ x / NOISE**2 + PRECISION * torch.eye(5)).inverse()
    torch.testing.assert_close(covariance, expected, rtol=1e-3, atol=1e-7)


class HeadFirst(nn.Module):
    """A model that registers its last layer before its first one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 3, bias=False)
        self.body = nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


def class_data() -> tuple[Tensor, Tensor]:
    x, _ = linear_data()
    return x, torch.arange(60) % 3


@pytest.mark.parametrize("hessian", ["full", "kron", "diag"])
def test_laplace_last_layer_agrees_with_laplace_torch(hessian: str) -> None:
    """The variance of the logits, and the mean probabilities by samples, against its own linearised predictive."""
    x, y = class_data()
    model = HeadFirst()
    net, covariance = approximate(trained(model, pb.Categorical()), (x, y), hessian=hessian)
    assert torch.equal(net.posterior.moments()[1].nonzero().flatten(), torch.arange(21))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from laplace import Laplace

        theirs = Laplace(model, "classification", "last_layer", hessian, prior_precision=PRECISION)
        theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=25))
        logits, var = theirs._glm_predictive_distribution(x[:8])
        probs = torch.distributions.MultivariateNormal(logits, var).sample((4000,)).softmax(-1).mean(0)
    with torch.no_grad():
        features = model.body(x[:8]).tanh()
    jacobian = torch.einsum("nf,co->ncof", features, torch.eye(3)).reshape(8, 3, 21)
    torch.testing.assert_close(jacobian @ covariance @ jacobian.mT, var, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(pb.predict(net, x[:8], 2000).probs, probs, rtol=0, atol=0.02)


def test_laplace_last_layer_keeps_other_weights_as_points() -> None:
    net, _ = approximate(trained(HeadFirst(), pb.Categorical()), class_data())
    std = net.posterior.moments()[1]
    assert bool((std[:21] > 0).all())
    assert float(std[21:].max()) == 0
    assert net.census().random == 21


@pytest.mark.parametrize("hessian", ["full", "diag"])
def test_laplace_subnetwork_is_exact_for_linear_regression(hessian: str) -> None:
    """The weights with the largest 1 / (H_ii + a), and the covariance given the others."""
    x, y = linear_data(outputs=2)
    x[:, 1] = 0  # a weight without information from the data has the prior's variance and no effect
    net = trained(nn.Linear(5, 2, bias=False), pb.GaussianNoise(NOISE))
    result, covariance = approximate(net, (x, y), subset="subnetwork", hessian=hessian, subnetwork_size=4)
    assert result.posterior.index.tolist() == [0, 2, 5, 7]
    chosen = torch.tensor([0, 2])
    precision = (x.T @ x / NOISE**2 + PRECISION * torch.eye(5))[chosen[:, None], chosen]
    block = torch.diag(1 / precision.diagonal()) if hessian == "diag" else precision.inverse()
    torch.testing.assert_close(covariance, torch.block_diag(block, block), rtol=1e-3, atol=1e-7)


def test_laplace_subnetwork_agrees_with_its_jacobian() -> None:
    """Positions are those of our layout, whatever the order and the points (biases, batch norm) in between."""
    model = tiny_model()
    x, y = tiny_data()
    net = trained(model, pb.Categorical())
    result, covariance = approximate(net, (x, y), subset="subnetwork", subnetwork_size=30)
    index = result.posterior.index
    mean = net.posterior.moments()[0].detach()
    net.eval()
    jacobian = torch.func.jacrev(lambda flat: net.run_at(flat, x))(mean)[..., index]
    probs = net(x).softmax(1).detach()
    hessian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    curvature = torch.einsum("ncp,nck,nkq->pq", jacobian, hessian, jacobian)
    torch.testing.assert_close(covariance, (curvature + PRECISION * torch.eye(30)).inverse(), rtol=1e-3, atol=1e-5)


def test_laplace_prior_maximises_the_marginal_likelihood() -> None:
    x, y = linear_data()
    model = nn.Linear(5, 1, bias=False)
    model.weight.data = 0.1 * torch.linalg.lstsq(x, y).solution.T
    net, _ = approximate(trained(model, pb.GaussianNoise(NOISE)), (x, y), prior_precision="marglik")
    curvature, square = x.T @ x / NOISE**2, float(model.weight.detach().square().sum())

    def evidence(a: float) -> float:
        log_det = torch.logdet(curvature + a * torch.eye(5))
        return 0.5 * float(5 * torch.tensor(a).log() - a * square - log_det)

    found = net.prior.std**-2
    best = max(evidence(float(a)) for a in torch.logspace(-3, 3, 400))
    assert evidence(found) > best - 0.01
    assert evidence(1.0) < best - 1
    assert float(pb.kl(net)) > 0


def test_laplace_trains_a_plain_model_first() -> None:
    x, y = linear_data()
    settings = {"epochs": 60, "lr": 0.05, "batch_size": 20, "progress": False}
    net = pb.fit(
        pb.Laplace(prior_precision=1e-3), nn.Linear(5, 1), (x, y), likelihood=pb.GaussianNoise(NOISE), **settings
    )
    expected = torch.linalg.lstsq(torch.cat([x, torch.ones(60, 1)], 1), y).solution[:5, 0]
    torch.testing.assert_close(net.posterior.mean, expected, rtol=0, atol=0.03)


def test_laplace_uses_learned_noise() -> None:
    x, y = linear_data()
    likelihood = pb.GaussianNoise("learned")
    noise = float(likelihood.moments(torch.zeros(1))[1].detach())
    _, covariance = approximate(trained(nn.Linear(5, 1, bias=False), likelihood), (x, y[:, 0]))
    expected = (x.T @ x / noise**2 + PRECISION * torch.eye(5)).inverse()
    torch.testing.assert_close(covariance, expected, rtol=1e-3, atol=1e-7)


def test_laplace_names_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = linear_data(outputs=2)
    with pytest.raises(pb.UserError, match="no Kronecker factors"):
        pb.Laplace(subset="subnetwork", hessian="kron")
    with pytest.raises(pb.UserError, match="unknown subset 'all'"):
        pb.Laplace(subset="all")
    with pytest.raises(pb.UserError, match="unknown hessian"):
        pb.Laplace(hessian="dense")
    with pytest.raises(pb.UserError, match="prior_precision"):
        pb.Laplace(prior_precision=-1.0)
    with pytest.raises(pb.UserError, match="Gaussian noise that is learned or given"):
        approximate(trained(nn.Linear(5, 4), pb.GaussianNoise("predicted")), (x, y))
    with pytest.raises(pb.UserError, match="without class weights"):
        approximate(trained(nn.Linear(5, 3), pb.Categorical(torch.ones(3))), class_data())
    with pytest.raises(pb.UserError, match="use subset='subnetwork'"):
        approximate(trained(nn.Sequential(nn.Linear(5, 3), nn.Tanh()), pb.Categorical()), class_data())
    monkeypatch.setattr(importlib.import_module("pocketbayes.methods.laplace"), "MAX_DENSE", 9)
    with pytest.raises(pb.UserError, match="set hessian='kron'"):
        approximate(trained(nn.Linear(5, 2), pb.GaussianNoise(1.0)), (x, y))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pb.UserError, match=r"pip install 'pocketbayes\[laplace\]'"):
        approximate(trained(nn.Linear(5, 2), pb.GaussianNoise(1.0)), (x, y))


@pytest.mark.parametrize("hessian", ["full", "kron", "diag"])
def test_laplace_files_keep_every_form_bit_for_bit(hessian: str, tmp_path: Path) -> None:
    x, y = class_data()
    net, _ = approximate(trained(HeadFirst(), pb.Categorical(), bayesian_bias=True), (x, y), hessian=hessian)
    pb.save(net, tmp_path / "net.pocket")
    again = pb.load(tmp_path / "net.pocket", HeadFirst())
    for how in ("sample", "linear"):
        assert torch.equal(pb.predict(net, x, 5, how).std, pb.predict(again, x, 5, how).std)


def test_laplace_refuses_factors_that_do_not_fit() -> None:
    net, _ = approximate(trained(HeadFirst(), pb.Categorical()), class_data(), hessian="kron")
    tree = network_file.describe(net)
    tree["posterior"]["tensors"]["columns"] = torch.eye(6).flatten()
    with pytest.raises(pb.UserError, match="a kronecker posterior with 'columns'"):
        network_file.rebuild(tree, HeadFirst())


class Scaled(nn.Module):
    """A model with its own parameter that is named like a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.ones(5, 5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x @ self.weight)


def test_laplace_finds_the_last_layer_among_other_weights() -> None:
    net, _ = approximate(trained(Scaled(), pb.Categorical()), class_data())
    assert [net.layout.slots[number].name for number in net.posterior.random_slots()] == ["head.weight"]
