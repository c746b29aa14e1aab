"""Fused draws and KL divergences equal torch's operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.posteriors import MeanField
from pocketbayes.posteriors.fused import BLOCK, softplus
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Empirical, LogUniform, Normal, Prior


def posterior(dtype: torch.dtype = torch.float32, std: float = 0.02) -> MeanField:
    """Return a posterior with more weights than a block, in two layers."""
    layout = Layout.of(nn.Sequential(nn.Linear(600, 450), nn.Linear(450, 7)))
    mean = torch.randn(layout.size, dtype=dtype) / 10
    return MeanField(layout, mean, std * (0.5 + torch.rand(layout.size, dtype=dtype)))


def gradients(loss: Tensor, field: MeanField) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, (field.mean, field.rho))


@pytest.mark.parametrize("scale", [-10.0, -4.0, 3.0])
def test_softplus_has_every_digit(scale: float) -> None:
    rho = scale + torch.randn(BLOCK + 1000)
    torch.testing.assert_close(softplus(rho).double(), F.softplus(rho.double()), rtol=1e-6, atol=0)


def test_softplus_keeps_extremes_and_nan() -> None:
    rho = torch.tensor([-200.0, -90.0, -2.0, 0.0, 50.0, torch.nan, -torch.inf])
    torch.testing.assert_close(softplus(rho), F.softplus(rho), rtol=1e-6, atol=1e-38, equal_nan=True)


@pytest.mark.parametrize("std", [0.02, 0.5])
def test_draw_has_the_value_and_gradient_of_the_formula(std: float) -> None:
    field = posterior(std=std)
    noise, weights = torch.randn(2, field.layout.size)
    ours = field.sample(noise)
    plain = field.mean + F.softplus(field.rho) * noise
    torch.testing.assert_close(ours, plain)
    for mine, theirs in zip(gradients((ours * weights).sum(), field), gradients((plain * weights).sum(), field)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("std", [0.02, 0.5])
@pytest.mark.parametrize("make", [lambda n: Normal(0.3), lambda n: Empirical([270_000, 3150]), lambda n: LogUniform()])
def test_kl_has_the_value_and_gradient_of_the_prior(make, std: float) -> None:
    field = posterior(std=std)
    prior: Prior = make(field.layout.size)
    ours, plain = field.kl(prior), prior.total_kl(field.mean, F.softplus(field.rho))
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=0)
    for mine, theirs in zip(gradients(ours, field), gradients(plain, field)):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


def test_kl_sees_stds_that_changed_after_a_draw() -> None:
    field, prior = posterior(), Normal(0.3)
    before = field.kl(prior).detach()
    field.sample()
    field.rho.data.add_(1)  # not counted by torch as a change
    expected = prior.total_kl(field.mean, F.softplus(field.rho)).detach()
    assert abs(float(expected - before)) > 1
    torch.testing.assert_close(field.kl(prior).detach(), expected, rtol=1e-4, atol=0)


def test_draw_in_float64_passes_gradcheck() -> None:
    layout = Layout.of(nn.Linear(3, 2))
    field = MeanField(layout, torch.randn(6, dtype=torch.float64), 0.1 + torch.rand(6, dtype=torch.float64))
    noise = torch.randn(6, dtype=torch.float64)

    def loss(mean: Tensor, rho: Tensor) -> Tensor:
        return field.sample(noise).sin().sum() + field.kl(Empirical([6]))

    assert torch.autograd.gradcheck(loss, (field.mean, field.rho))


def test_draws_work_under_functional_transforms() -> None:
    field = posterior()
    noise = torch.randn(field.layout.size)
    slope = torch.func.grad(lambda z: field.sample(z).sum())(noise)
    torch.testing.assert_close(slope, F.softplus(field.rho.detach()))
