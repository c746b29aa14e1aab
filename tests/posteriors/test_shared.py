"""The shared storage: moments of draws, gradients of every parameter, exact files."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.network import Network
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Normal, ScaleMixture
from pocketbayes.posteriors.shared import Shared

DRAWS = ["shared", "shared-noise", "independent"]


def make(draw: str = "shared", blend: str = "convex", dtype: torch.dtype = torch.float32) -> Shared:
    """Return 14 weights: 8 in three Gaussians, 3 outliers, 3 blends of two Gaussians."""
    layout = Layout.of(nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)))
    generator = torch.Generator().manual_seed(0)
    index = torch.tensor([0, 1, 2, 3, 0, 4, 6, 1, 1, 5, 7, 2, 8, 0])
    return Shared(
        layout,
        centres=torch.tensor([[0.5, 0.2], [-0.4, 0.3], [0.1, 0.1]], dtype=dtype),
        factors=torch.tensor([[0.2, 0.1, 0.15], [0.1, -0.2, 0.3], [0.3, 0.05, 0.1]], dtype=dtype),
        index=index,
        outlier_mean=torch.randn(3, generator=generator).to(dtype),
        outlier_std=0.1 + torch.rand(3, generator=generator).to(dtype),
        blend_index=torch.tensor([[0, 1], [2, 0], [1, 2]]),
        blend_alpha=torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.9, 0.1]], dtype=dtype),
        draw=draw,  # type: ignore[arg-type]
        blend=blend,  # type: ignore[arg-type]
    )


def draws(posterior: Shared, count: int = 100_000) -> Tensor:
    with torch.no_grad():
        return torch.stack([posterior.sample() for _ in range(count // 5)])


@pytest.mark.parametrize("blend", ["convex", "mixture"])
@pytest.mark.parametrize("draw", DRAWS)
def test_shared_draws_have_the_marginal_moments(draw: str, blend: str) -> None:
    posterior = make(draw, blend)
    sampled = draws(posterior)
    mean, std = (m.detach() for m in posterior.moments())
    assert bool(((sampled.mean(0) - mean).abs() < 5 * std / len(sampled) ** 0.5).all())
    torch.testing.assert_close(sampled.std(0), std, rtol=0.03, atol=1e-4)


@pytest.mark.parametrize("draw", DRAWS)
def test_shared_weights_move_together_only_if_shared(draw: str) -> None:
    sampled = draws(make(draw), 20_000)
    together = torch.corrcoef(sampled[:, [0, 4]].T)[0, 1]  # both of Gaussian 0
    apart = torch.corrcoef(sampled[:, [0, 1]].T)[0, 1]
    assert abs(float(apart)) < 0.08
    if draw == "independent":
        assert abs(float(together)) < 0.08
    else:
        assert float(together) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("draw", DRAWS)
def test_shared_gradient_reaches_every_trained_parameter(draw: str) -> None:
    posterior = make(draw)
    (posterior.sample() ** 2).sum().backward()
    for name, parameter in posterior.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert bool((parameter.grad != 0).all()), name
    trained = {name for name, p in posterior.named_parameters() if p.requires_grad}
    assert {"centre_mean", "raw_a", "outlier_mean", "outlier_rho"} <= trained
    assert ("centre_std" in trained) == (draw != "shared")


@pytest.mark.parametrize("draw", DRAWS)
def test_shared_gradient_reaches_a_gaussian_through_a_blend(draw: str) -> None:
    posterior = make(draw)
    posterior.sample()[posterior.index == 6].sum().backward()  # the first blend: 0.7 and 0.3 of Gaussians 0 and 1
    torch.testing.assert_close(posterior.centre_mean.grad, torch.tensor([0.7, 0.3, 0.0]))


@pytest.mark.parametrize("draw", DRAWS)
def test_shared_training_moves_the_gaussians(draw: str, learning_seed: int) -> None:
    torch.manual_seed(learning_seed)
    posterior = make(draw)
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False))
    net = Network(model, posterior, likelihood=pb.Categorical())
    x = torch.randn(64, 4)
    y = (x[:, 0] > 0).long()
    before = {name: p.clone() for name, p in posterior.named_parameters()}

    def mean_loss() -> float:
        with torch.no_grad():
            return sum(float(net.likelihood.nll(net(x), y)) for _ in range(100)) / 100

    first = mean_loss()
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        net.likelihood.nll(net(x), y).backward()  # the likelihood alone: no KL
        optimizer.step()
    assert mean_loss() < 0.8 * first
    for name, parameter in posterior.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name


@pytest.mark.parametrize("draw", DRAWS)
def test_shared_kl_is_the_counted_sum_of_marginals(draw: str) -> None:
    posterior = make(draw, dtype=torch.float64)
    mean, var = posterior.centre_mean, posterior.variances()
    prior = torch.distributions.Normal(torch.zeros(3, dtype=torch.float64), 0.5)
    each = torch.distributions.kl_divergence(torch.distributions.Normal(mean, var.sqrt()), prior)
    inside = sum(each[i] for i in posterior.index[posterior.index < 3])
    blended = (posterior.blend_alpha * each[posterior.blend_index]).sum()
    outlier = torch.distributions.Normal(posterior.outlier_mean, nn.functional.softplus(posterior.outlier_rho))
    own = torch.distributions.kl_divergence(outlier, prior).sum()
    torch.testing.assert_close(posterior.kl(Normal(0.5)), inside + blended + own)
    centred = Normal(0.5, centre=torch.zeros(14, dtype=torch.float64))
    torch.testing.assert_close(posterior.kl(centred), inside + blended + own)
    assert float(posterior.counts.sum()) == pytest.approx(14 - posterior.outliers)


@pytest.mark.parametrize("draw", DRAWS)
def test_shared_kl_to_individual_centres_sums_over_weights(draw: str) -> None:
    posterior = make(draw, dtype=torch.float64)
    prior = Normal(0.5, centre=torch.linspace(-1, 1, 14, dtype=torch.float64))

    def by_weight() -> torch.Tensor:
        mean = torch.cat([posterior.centre_mean, posterior.outlier_mean])
        std = torch.cat([posterior.variances().sqrt(), nn.functional.softplus(posterior.outlier_rho)])
        total = torch.zeros((), dtype=torch.float64)
        for entry, centre in zip(posterior.index.tolist(), prior.centre, strict=True):
            one = Normal(0.5, centre=centre)
            if entry < len(mean):
                total = total + one.kl(mean[entry], std[entry])
            else:
                members, alpha = (t[entry - len(mean)] for t in (posterior.blend_index, posterior.blend_alpha))
                total = total + (alpha * one.kl(mean[members], std[members])).sum()
        return total

    trained = [p for p in posterior.parameters() if p.requires_grad]
    torch.testing.assert_close(posterior.kl(prior), by_weight())
    ours, theirs = (torch.autograd.grad(kl, trained) for kl in (posterior.kl(prior), by_weight()))
    torch.testing.assert_close(ours, theirs)
    index = posterior.index.clone()
    index[index < 3] = index[index < 3].flip(0)
    posterior.reassign(index, posterior.blend_index.flip(1), posterior.blend_alpha)
    torch.testing.assert_close(posterior.kl(prior), by_weight())
    state = {name: tensor.clone() for name, tensor in posterior.state_dict().items()}
    state["index"][state["index"] == 0] = 1
    posterior.load_state_dict(state)
    torch.testing.assert_close(posterior.kl(prior), by_weight())


def test_shared_kl_depends_on_the_centre() -> None:
    posterior = make(dtype=torch.float64)
    centre = posterior.moments()[0].detach()
    assert float(posterior.kl(Normal(0.5, centre=centre)).detach()) < float(posterior.kl(Normal(0.5)).detach())
    assert bool(posterior.kl(ScaleMixture()).isfinite())


@pytest.mark.parametrize("std", [1e-8, 1e-4, 10.0])
@pytest.mark.parametrize("draw", DRAWS)
def test_shared_tiny_and_large_stds_stay_finite(draw: str, std: float) -> None:
    layout = Layout.of(nn.Linear(3, 2, bias=False))
    posterior = Shared(
        layout,
        centres=torch.tensor([[0.1, std]]),
        factors=torch.tensor([[std, 0.0, std]]),
        index=torch.tensor([0, 0, 0, 0, 1, 0]),
        outlier_mean=torch.tensor([1.0]),
        outlier_std=torch.tensor([std]),
        blend_index=torch.zeros(0, 5, dtype=torch.int64),
        blend_alpha=torch.zeros(0, 5),
        draw=draw,  # type: ignore[arg-type]
    )
    torch.testing.assert_close(posterior.moments()[1][4].detach(), torch.tensor(std), rtol=1e-3, atol=0)
    (posterior.sample().sum() + posterior.kl(Normal(1.0))).backward()
    trained = [parameter for parameter in posterior.parameters() if parameter.requires_grad]
    assert len(trained) >= 4
    assert all(bool(parameter.grad.isfinite().all()) for parameter in trained)


def test_shared_is_restored_bit_for_bit() -> None:
    for draw in DRAWS:
        posterior = make(draw, "mixture")
        again = Shared.restore(posterior.layout, posterior.state_dict(), posterior.config())
        noise = torch.randn(posterior.noise_size)
        assert torch.equal(posterior.sample(noise), again.sample(noise))
        assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in posterior.parameters()]


def test_shared_census_counts_the_index_and_the_papers_count() -> None:
    census = make().census()
    assert census.stored == {"gaussians": 6, "outliers": 6, "indices": 14, "blend indices": 6, "blend alphas": 6}
    assert census.trainable == 12
    assert "12 values" in census.notes[1]
    share = torch.tensor([3, 3, 2, 3, 3]) / 14  # Gaussians 0, 1, 2, outliers, blends
    assert make().index_bits() == pytest.approx(float(-(share * share.log2()).sum()), abs=1e-5)


@pytest.mark.parametrize("blend", ["convex", "mixture"])
@pytest.mark.parametrize("draw", ["shared", "shared-noise"])
def test_shared_projected_gradients_are_those_of_the_draw(draw: str, blend: str) -> None:
    posterior = make(draw, blend, torch.float64)
    gradient = torch.randn(3, posterior.layout.size, dtype=torch.float64)
    origin = torch.zeros(posterior.noise_size, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(posterior.sample, origin)
    torch.testing.assert_close(posterior.project(gradient), gradient @ jacobian)
