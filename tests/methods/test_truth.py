"""Bayesian linear regression: the posterior is known, and so is the best mean-field approximation of it.

With noise s and prior N(0, p^2) the exact posterior is N(m, A^-1), A = X^T X / s^2 + I / p^2, m = A^-1 X^T y / s^2; the
mean-field Gaussian nearest to it, in the sense of the KL that training minimises, has mean m and variances 1 / A_ii.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb

NOISE, PRIOR_STD, EXAMPLES, FEATURES = 0.5, 2.0, 100, 4


def regression(seed: int = 4) -> tuple[Tensor, Tensor]:
    """Return data with correlated features: the exact marginal stds are up to 1.5 times the mean-field ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(EXAMPLES, FEATURES, generator=generator)
    x[:, 1] += 1.5 * x[:, 0]
    y = x @ torch.tensor([1.5, -1.0, 0.8, 2.0]) + NOISE * torch.randn(EXAMPLES, generator=generator)
    return x, y[:, None]


def exact(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and precision of the exact posterior."""
    x, y = x.double(), y.double()
    precision = x.T @ x / NOISE**2 + torch.eye(FEATURES, dtype=torch.float64) / PRIOR_STD**2
    return torch.linalg.solve(precision, x.T @ y / NOISE**2)[:, 0], precision


def trained(method: pb.Method, epochs: int = 1000, seed: int = 4) -> pb.Network:
    torch.manual_seed(seed)
    net = pb.fit(
        method,
        nn.Linear(FEATURES, 1, bias=False),
        regression(seed),
        likelihood=pb.GaussianNoise(NOISE),
        epochs=epochs,
        batch_size=EXAMPLES,
        lr=0.03,
        schedule="cosine",
        progress=False,
        seed=seed,
    )
    assert isinstance(net, pb.Network)
    return net


@pytest.mark.parametrize(
    "settings",
    [
        {"propagation": "sample", "train_samples": 4, "antithetic": False},
        {"propagation": "sample", "train_samples": 2, "antithetic": True},
        {"propagation": "local", "train_samples": 2},
        {"propagation": "flipout", "train_samples": 3},
    ],
)
def test_mean_field_training_finds_the_best_posterior(settings: dict[str, Any], learning_seed: int) -> None:
    net = trained(pb.MeanFieldVI(prior_std=PRIOR_STD, std_init=0.1, **settings), epochs=2000, seed=learning_seed)
    mean, precision = exact(*regression(learning_seed))
    assert float((precision.inverse().diagonal() * precision.diagonal()).max()) > 1.5**2
    found_mean, found_std = (moment.detach().double() for moment in net.posterior.moments())
    torch.testing.assert_close(found_mean, mean, rtol=0.02, atol=0.005)
    torch.testing.assert_close(found_std, precision.diagonal().rsqrt(), rtol=0.1, atol=0)


@pytest.mark.parametrize("propagation", ["sample", "local"])
def test_ivon_finds_the_best_mean_field_posterior(propagation: str, learning_seed: int) -> None:
    method = pb.IVON(prior_std=PRIOR_STD, std_init=0.1, propagation=propagation, train_samples=4)
    net = trained(method, epochs=1500, seed=learning_seed)
    mean, precision = exact(*regression(learning_seed))
    found_mean, found_std = (moment.detach().double() for moment in net.posterior.moments())
    torch.testing.assert_close(found_mean, mean, rtol=0.02, atol=0.005)
    torch.testing.assert_close(found_std, precision.diagonal().rsqrt(), rtol=0.1, atol=0)


def test_deterministic_training_finds_least_squares(learning_seed: int) -> None:
    x, y = regression(learning_seed)
    net = trained(pb.Deterministic(), epochs=800, seed=learning_seed)
    expected = torch.linalg.lstsq(x.double(), y.double()).solution[:, 0]
    torch.testing.assert_close(net.posterior.mean.detach().double(), expected, rtol=1e-3, atol=1e-3)


def test_predict_has_the_mean_field_variance() -> None:
    """Var(y) = sum x_i^2 / A_ii + s^2 at the best mean-field posterior, by 4000 weight samples."""
    x, y = regression()
    mean, precision = exact(x, y)
    net = pb.bayesianize(nn.Linear(FEATURES, 1, bias=False), pb.MeanFieldVI())
    net.posterior = pb.posteriors.MeanField(net.layout, mean.float(), precision.diagonal().rsqrt().float())
    net.likelihood = pb.GaussianNoise(NOISE)
    prediction = pb.predict(net, x[:20], samples=4000)
    epistemic = (x[:20].double().square() / precision.diagonal()).sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(prediction.mean.double(), x[:20].double() @ mean[:, None], rtol=0, atol=0.01)
    torch.testing.assert_close(prediction.epistemic.double(), epistemic, rtol=0.1, atol=0)
    torch.testing.assert_close(prediction.aleatoric, torch.full((20, 1), NOISE))
    torch.testing.assert_close(prediction.std.double(), (epistemic.square() + NOISE**2).sqrt(), rtol=0.02, atol=0)


def test_mean_field_without_data_returns_to_the_prior() -> None:
    """Inputs of 0 carry no information, so the posterior converges to the prior from any start."""
    net = pb.fit(
        pb.MeanFieldVI(prior_std=0.5, std_init=0.05),
        nn.Linear(3, 1, bias=False),
        (torch.zeros(20, 3), torch.zeros(20)),
        likelihood=pb.GaussianNoise(1.0),
        epochs=500,
        batch_size=20,
        lr=0.03,
        progress=False,
    )
    mean, std = (moment.detach() for moment in net.posterior.moments())
    torch.testing.assert_close(mean, torch.zeros(3), rtol=0, atol=0.01)
    torch.testing.assert_close(std, torch.full((3,), 0.5), rtol=0.02, atol=0)
