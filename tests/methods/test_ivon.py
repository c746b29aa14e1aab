"""IVON's optimiser with inaccurate curvature estimates."""

import pytest
import torch
from torch import nn

import pocketbayes as pb


def test_ivon_keeps_stds_finite_at_negative_curvature() -> None:
    method = pb.IVON()
    net = method.init(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    optimizer = method.make_optimizer(net, 0.3, 100, 1000)
    posterior = net.posterior
    for _ in range(100):  # estimates that lower every curvature, while the empirical prior widens
        posterior.mean.grad = torch.zeros_like(posterior.mean)
        posterior.rho.grad = torch.full_like(posterior.rho, -1e3)
        optimizer.step()
    mean, std = (moment.detach() for moment in posterior.moments())
    assert bool(std.isfinite().all() and (std > 0).all())
    widest = net.prior.spread(net.prior.variances(mean, std)).sqrt()
    assert bool((std <= 2 * widest).all())


def test_ivon_stds_follow_the_curvature_in_the_state() -> None:
    method = pb.IVON(prior_std=1.0)
    net = method.init(nn.Linear(3, 2))
    optimizer = method.make_optimizer(net, 0.1, 100, 500)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(16, 3)), torch.randint(2, (16,))).backward()
        optimizer.step()
    total = optimizer.state[net.posterior.rho]["hess"] + 1 / 500
    torch.testing.assert_close(net.posterior.moments()[1].detach(), (500 * total).rsqrt(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_ivon_learns_a_regression_with_little_noise(seed: int) -> None:
    """Its loss gets steeper as the noise is learned, also for biases and for the noise itself."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(256, 1, generator=generator) - 1
    y = 3 * x.square() + 0.01 * torch.randn(256, 1, generator=generator)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
    net = pb.fit("ivon", model, (x, y), epochs=100, batch_size=32, seed=seed, progress=False)
    assert float((pb.predict(net, x, samples=20).mean - y).square().mean().sqrt()) < 0.1
