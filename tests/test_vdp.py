"""VDP++ as a method: its two losses, its noise in the inputs, and the posterior that it finds where one is known."""

from __future__ import annotations

import pytest
import torch
import torch.distributions as D
from torch import nn

import pocketbayes as pb
from cases import tiny_data, tiny_model


def test_it_finds_the_best_mean_field_posterior_of_linear_regression() -> None:
    """The moments of a linear model are exact, so the objective is the ELBO itself, without noise."""
    torch.manual_seed(0)
    x = torch.randn(60, 3) @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]]) + 0.5 * torch.randn(60, 1)
    precision = x.double().T @ x.double() / 0.5**2 + torch.eye(3).double()
    mean = torch.linalg.solve(precision, x.double().T @ y.double() / 0.5**2).flatten()
    net = pb.fit(
        pb.VDP(std_init=0.1, prior_std=1.0), nn.Linear(3, 1, bias=False), (x, y), likelihood=pb.GaussianNoise(0.5),
        epochs=600, batch_size=60, lr=0.02, schedule="cosine", progress=False,
    )  # fmt: skip
    got_mean, got_std = (moment.detach().double() for moment in net.posterior.moments())
    torch.testing.assert_close(got_mean, mean, rtol=0.01, atol=2e-3)
    torch.testing.assert_close(got_std, precision.diag().rsqrt(), rtol=0.02, atol=0)


def test_cross_entropy_is_the_expected_nll_to_second_order() -> None:
    mean, var = torch.randn(4, 3).double(), 0.02 * torch.rand(4, 3).double()
    target = torch.tensor([0, 2, 1, 1])
    noise = torch.randn(50_000, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    draws = mean + var.sqrt() * torch.cat([noise, -noise])
    expected = -torch.log_softmax(draws, 2)[:, torch.arange(4), target].mean()
    likelihood = pb.Categorical()
    torch.testing.assert_close(likelihood.nll(pb.Gaussian(mean, var), target), expected, rtol=0, atol=1e-4)
    assert abs(float(likelihood.nll(mean, target) - expected)) > 1e-3, "the second order matters here"


def test_gaussian_nll_is_the_density_of_the_one_hot_label() -> None:
    from pocketbayes.objective import VARIANCE_FLOOR

    mean, var = torch.randn(4, 3).double(), torch.rand(4, 3).double()
    target = torch.tensor([0, 2, 1, 1])
    probs = mean.softmax(1)
    jacobian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    spread = (jacobian.square() @ var[:, :, None])[:, :, 0] + VARIANCE_FLOOR
    one_hot = nn.functional.one_hot(target, 3).double()
    expected = -D.Normal(probs, spread.sqrt()).log_prob(one_hot).sum(1).mean()
    got = pb.Categorical(gaussian_loss="gaussian-nll").nll(pb.Gaussian(mean, var), target)
    torch.testing.assert_close(got, expected)


def test_both_losses_of_a_regression_are_exact() -> None:
    mean, var, target = torch.randn(5, 1).double(), torch.rand(5, 1).double(), torch.randn(5, 1).double()
    output = pb.Gaussian(mean, var)
    predictive = -D.Normal(mean, (0.3**2 + var).sqrt()).log_prob(target).mean()
    torch.testing.assert_close(pb.GaussianNoise(0.3, gaussian_loss="gaussian-nll").nll(output, target), predictive)
    expected = (-D.Normal(mean, 0.3).log_prob(target) + var / (2 * 0.3**2)).mean()
    torch.testing.assert_close(pb.GaussianNoise(0.3).nll(output, target), expected)


@pytest.mark.parametrize("loss", ["cross-entropy", "gaussian-nll"])
@pytest.mark.parametrize("activation", ["taylor", "exact"])
def test_either_loss_and_activation_learns(loss: str, activation: str) -> None:
    method = pb.VDP(loss=loss, activation=activation, beta=0.01)
    net = pb.fit(method, tiny_model(), tiny_data(), epochs=15, batch_size=16, lr=1e-2, progress=False)
    measures = pb.evaluate(net, tiny_data())
    assert measures["accuracy"] > 0.9
    assert net.likelihood.gaussian_loss == loss


def test_noise_in_the_inputs_adds_to_the_variance() -> None:
    model = nn.Linear(4, 2, bias=False)
    net = pb.bayesianize(model, pb.VDP(std_init=0.1, input_var=0.3))
    x = torch.randn(5, 4)
    weight = model.weight.detach()
    expected = x.square() @ torch.full((4, 2), 0.01) + 0.3 * (weight.square() + 0.01).sum(1)
    torch.testing.assert_close(net(x).variance.detach(), expected)


def test_wrong_settings_say_so() -> None:
    for settings, message in (
        ({"loss": "mse"}, "unknown loss 'mse'"),
        ({"activation": "relu"}, "unknown activation 'relu'"),
        ({"input_var": -1.0}, "input_var must not be negative"),
        ({"train_samples": 3}, "draws nothing"),
    ):
        with pytest.raises(pb.UserError, match=message):
            pb.VDP(**settings)
