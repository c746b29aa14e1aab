"""The objective: likelihoods against torch.distributions, KL against closed form and quadrature, annealing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.base.errors import UserError
from pocketbayes.likelihoods import Categorical, GaussianNoise, match_target, restore
from pocketbayes.methods.base import kl_weight
from pocketbayes.posteriors import MeanField, Point
from pocketbayes.posteriors.base import softplus_inverse
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import PRIORS, Normal, Prior, ScaleMixture
from pocketbayes.posteriors.priors import restore as restore_prior

# -- categorical ------------------------------------------------------------------------------------------------------


def test_categorical_is_the_mean_log_probability() -> None:
    logits, labels = torch.randn(7, 4), torch.randint(4, (7,))
    expected = -D.Categorical(logits=logits).log_prob(labels).mean()
    torch.testing.assert_close(Categorical().nll(logits, labels), expected)


def test_categorical_per_pixel_is_the_mean_over_pixels() -> None:
    logits, labels = torch.randn(2, 4, 3, 5), torch.randint(4, (2, 3, 5))
    expected = -D.Categorical(logits=logits.movedim(1, -1)).log_prob(labels).mean()
    torch.testing.assert_close(Categorical().nll(logits, labels), expected)


def test_categorical_ignores_ignored_labels() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 255, 1, 255, 3, 2])
    kept = labels != 255
    expected = Categorical().nll(logits[kept], labels[kept])
    torch.testing.assert_close(Categorical(ignore_index=255).nll(logits, labels), expected)


def test_categorical_class_weights_give_the_weighted_mean() -> None:
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0])
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 255, 3, 3])
    kept = labels != 255
    log_probs = D.Categorical(logits=logits[kept]).log_prob(labels[kept])
    each = weights[labels[kept]]
    likelihood = Categorical(class_weights=weights, ignore_index=255)
    torch.testing.assert_close(likelihood.nll(logits, labels), -(each * log_probs).sum() / each.sum())
    torch.testing.assert_close(
        likelihood.nll(logits, labels), F.cross_entropy(logits, labels, weight=weights, ignore_index=255)
    )


@pytest.mark.parametrize("weights", [None, torch.ones(4)])
def test_categorical_without_labels_has_zero_loss_and_gradient(weights: Tensor | None) -> None:
    logits = torch.randn(2, 4, 3, 3, requires_grad=True)
    loss = Categorical(class_weights=weights, ignore_index=255).nll(logits, torch.full((2, 3, 3), 255))
    loss.backward()
    assert float(loss.detach()) == 0
    assert float(logits.grad.abs().max()) == 0


def test_categorical_takes_probabilities() -> None:
    logits, probs = torch.randn(5, 4), torch.randn(5, 4).softmax(1)
    expected = -(probs * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(Categorical().nll(logits, probs), expected)
    labels = torch.randint(4, (5,))
    torch.testing.assert_close(
        Categorical().nll(logits, F.one_hot(labels, 4).float()), Categorical().nll(logits, labels)
    )


def test_categorical_refuses_a_label_out_of_range() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        Categorical().nll(torch.randn(2, 3), torch.tensor([0, 3]))


# -- Gaussian ---------------------------------------------------------------------------------------------------------


def test_gaussian_known_noise_is_the_normal_log_density() -> None:
    output, target = torch.randn(5, 3), torch.randn(5, 3)
    expected = -D.Normal(output, 0.7).log_prob(target).sum(1).mean()
    torch.testing.assert_close(GaussianNoise(0.7).nll(output, target), expected)


def test_gaussian_learned_noise_finds_the_residuals_std() -> None:
    likelihood = GaussianNoise("learned")
    output, target = torch.zeros(1000, 1), 2.0 * torch.randn(1000, 1)
    expected = -D.Normal(output, 0.5 + 1e-6).log_prob(target).mean()
    torch.testing.assert_close(likelihood.nll(output, target), expected)
    optimizer = torch.optim.Adam(likelihood.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        likelihood.nll(output, target).backward()
        optimizer.step()
    torch.testing.assert_close(likelihood.moments(output)[1][0], target.square().mean().sqrt()[None], rtol=0.01, atol=0)


def test_gaussian_predicted_noise_is_the_outputs_second_half() -> None:
    output, target = torch.randn(5, 4), torch.randn(5, 2)
    noise = F.softplus(output[:, 2:]) + 1e-6
    expected = -D.Normal(output[:, :2], noise).log_prob(target).sum(1).mean()
    torch.testing.assert_close(GaussianNoise("predicted").nll(output, target), expected)


@pytest.mark.parametrize("shape", [(5, 3), (6,)])
def test_gaussian_predicted_noise_needs_an_axis_of_pairs(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="noise='predicted' needs outputs"):
        GaussianNoise("predicted").moments(torch.randn(shape))


@pytest.mark.parametrize("noise", [0.0, -1.0, "lerned", math.nan])
def test_gaussian_refuses_impossible_noise(noise: object) -> None:
    with pytest.raises(UserError, match="noise must be"):
        GaussianNoise(noise)  # type: ignore[arg-type]


@pytest.mark.parametrize(("output", "target"), [((5, 1), (5,)), ((5,), (5, 1)), ((5, 1), (5, 1)), ((1, 1), (1,))])
def test_gaussian_targets_may_lack_an_axis_of_length_one(output: tuple[int, ...], target: tuple[int, ...]) -> None:
    mean, y = torch.randn(output), torch.randn(target)
    expected = -D.Normal(mean.reshape(-1), 0.3).log_prob(y.reshape(-1)).mean()
    torch.testing.assert_close(GaussianNoise(0.3).nll(mean, y), expected)


@pytest.mark.parametrize(("output", "target"), [((5, 2), (2, 5)), ((5, 1), (4,)), ((6, 1), (2, 3)), ((5, 2), (5,))])
def test_gaussian_refuses_targets_of_another_shape(output: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="do not fit outputs of shape"):
        match_target(torch.randn(output), torch.randn(target))


@pytest.mark.parametrize(
    "likelihood",
    [Categorical(), Categorical(torch.tensor([1.0, 2.0, 3.0]), 255), GaussianNoise(0.3), GaussianNoise("predicted")],
)
def test_likelihood_json_round_trip(likelihood: Categorical | GaussianNoise) -> None:
    again = restore(likelihood.name, likelihood.config(), likelihood.state_dict())
    output = torch.randn(4, 3) if isinstance(likelihood, Categorical) else torch.randn(4, 2)
    target = torch.randint(3, (4,)) if isinstance(likelihood, Categorical) else output[:, :1].clone()
    if likelihood.config().get("noise") == 0.3:
        target = output.clone()
    assert torch.equal(likelihood.nll(output, target), again.nll(output, target))


def test_likelihood_learned_noise_is_restored() -> None:
    likelihood = GaussianNoise("learned")
    likelihood.raw.data.fill_(0.123)
    again = restore("gaussian", likelihood.config(), likelihood.state_dict())
    assert float(again.raw.detach()) == float(likelihood.raw.detach())


# -- KL ---------------------------------------------------------------------------------------------------------------


def mean_field(mean: Tensor, std: Tensor) -> MeanField:
    layout = Layout.of(nn.Linear(len(mean), 1, bias=False))
    return MeanField(layout, mean, std)


@pytest.mark.parametrize(
    "method", [pb.MeanFieldVI(prior_std=std, std_init=first) for std, first in ((1.0, 0.05), (0.1, 0.003), (1.0, 0.7))]
)
def test_kl_of_a_large_layer_is_exact_to_1e_6(method: pb.MeanFieldVI) -> None:
    net = pb.bayesianize(nn.Linear(784, 400), method)
    mean, std = (moment.detach().double() for moment in net.posterior.moments())
    expected = D.kl_divergence(D.Normal(mean, std), D.Normal(0.0, method.prior_std)).sum()
    assert mean.numel() == 784 * 400
    assert abs(float(pb.kl(net).detach()) / float(expected) - 1) < 1e-6


def test_empirical_kl_of_a_large_layer_is_exact_to_1e_6() -> None:
    net = pb.bayesianize(nn.Linear(784, 400), pb.MeanFieldVI(prior="empirical", std_init=0.01))
    mean, std = (moment.detach().double() for moment in net.posterior.moments())
    best = (mean.square() + std.square()).mean().sqrt()
    expected = float(D.kl_divergence(D.Normal(mean, std), D.Normal(0.0, best)).sum())
    assert float(pb.kl(net).detach()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("std", [1e-38, 1e-7, 0.0999, 0.1, 0.7, 1e15])
@pytest.mark.parametrize("n", [1, 3, 2**16 + 5])
def test_normal_total_kl_is_exact_for_any_std(std: float, n: int) -> None:
    """A prior std of 0.1 makes the third and fourth terms nearly cancel."""
    mean, stds = torch.full((n,), 0.01), torch.full((n,), std)
    expected = Normal(0.1).kl(mean.double(), stds.double()).sum()
    torch.testing.assert_close(Normal(0.1).total_kl(mean, stds).double(), expected, rtol=1e-6, atol=0)


def test_normal_total_kl_has_the_gradient_of_the_sum() -> None:
    mean, std = (torch.rand(50, dtype=torch.float64).add(0.1).requires_grad_() for _ in range(2))
    torch.autograd.gradcheck(Normal(0.3).total_kl, (mean, std))
    torch.autograd.gradgradcheck(Normal(0.3).total_kl, (mean, std))


def test_kl_to_a_prior_centred_on_the_pretrained_weights() -> None:
    model = nn.Linear(20, 10)
    net = pb.bayesianize(model, pb.MeanFieldVI(prior="pretrained", prior_std=0.5, std_init=0.2))
    at_start = 200 * (math.log(0.5 / 0.2) + 0.5 * (0.2 / 0.5) ** 2 - 0.5)
    assert float(pb.kl(net).detach()) == pytest.approx(at_start, rel=1e-5)
    net.posterior.mean.data += 0.3
    shifted = D.kl_divergence(
        D.Normal(net.posterior.mean.detach(), 0.2), D.Normal(model.weight.detach().reshape(-1), 0.5)
    ).sum()
    torch.testing.assert_close(pb.kl(net).detach(), shifted, rtol=1e-5, atol=0)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(1e-3, 3)), min_size=1, max_size=5),
    st.floats(0.01, 10),
)
def test_kl_to_a_normal_is_the_closed_form(weights: list[tuple[float, float]], prior_std: float) -> None:
    mean, std = torch.tensor(weights, dtype=torch.float64).unbind(1)
    expected = D.kl_divergence(D.Normal(mean, std), D.Normal(torch.zeros_like(mean), prior_std))
    torch.testing.assert_close(Normal(prior_std).kl(mean, std), expected)


def test_kl_gradients_are_those_of_the_closed_form() -> None:
    posterior = mean_field(torch.randn(6).double(), 0.1 + torch.rand(6).double())
    posterior.kl(Normal(0.7)).backward()
    mean = posterior.mean.detach().requires_grad_()
    rho = posterior.rho.detach().requires_grad_()
    D.kl_divergence(D.Normal(mean, F.softplus(rho)), D.Normal(0.0, 0.7)).sum().backward()
    torch.testing.assert_close(posterior.mean.grad, mean.grad)
    torch.testing.assert_close(posterior.rho.grad, rho.grad)


@pytest.mark.parametrize("prior", [Normal(1.0), ScaleMixture()])
def test_kl_of_a_weight_without_std_is_zero_without_gradient(prior: Normal | ScaleMixture) -> None:
    mean, std = torch.randn(6), torch.tensor([0.0, 0.1, 0.0, 0.2, 0.0, 0.3])
    posterior = mean_field(mean, std)
    torch.manual_seed(1)
    kl = posterior.kl(prior)
    if isinstance(prior, Normal):
        kept = std > 0
        torch.testing.assert_close(kl, D.kl_divergence(D.Normal(mean[kept], std[kept]), D.Normal(0.0, 1.0)).sum())
    kl.backward()
    for parameter in posterior.parameters():
        assert bool(parameter.grad.isfinite().all())
        assert bool((parameter.grad[std == 0] == 0).all())
        assert bool((parameter.grad[std > 0] != 0).all())
    assert float(Point(posterior.layout, mean).kl(prior)) == 0


def test_kl_of_millions_of_equal_weights_keeps_its_digits() -> None:
    """A single float32 inner product over so many numbers is off by 3e-4."""
    mean, std = torch.full((8_000_000,), 0.01), torch.full((8_000_000,), 0.7)
    expected = 8e6 * (0.5 * (0.01**2 + 0.7**2) - math.log(0.7) - 0.5)
    assert float(Normal(1.0).total_kl(mean, std)) == pytest.approx(expected, rel=2e-5)


def test_kl_is_zero_only_at_the_prior() -> None:
    assert float(mean_field(torch.zeros(4), torch.full((4,), 0.3)).kl(Normal(0.3)).detach()) == pytest.approx(
        0, abs=1e-6
    )


def quadrature_kl(prior: ScaleMixture, mean: float, std: float) -> float:
    """Return the integral of q log(q / p), with p from torch.distributions."""
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    q = D.Normal(mean, std)
    p = D.MixtureSameFamily(
        D.Categorical(torch.tensor([prior.p, 1 - prior.p], dtype=torch.float64)),
        D.Normal(torch.zeros(2, dtype=torch.float64), torch.tensor([prior.std1, prior.std2], dtype=torch.float64)),
    )
    w = mean + std * z
    return float(torch.trapezoid(D.Normal(0.0, 1.0).log_prob(z).exp() * (q.log_prob(w) - p.log_prob(w)), z))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.001), (0.003, 0.002), (0.5, 0.1), (-1.0, 1.0)])
def test_kl_to_a_scale_mixture_is_unbiased(mean: float, std: float) -> None:
    prior, draws = ScaleMixture(p=0.3, std1=1.0, std2=0.0025), 200_000
    each = prior.kl(torch.full((draws,), mean, dtype=torch.float64), torch.full((draws,), std, dtype=torch.float64))
    error = 6 * float(each.std()) / draws**0.5
    assert abs(float(each.mean()) - quadrature_kl(prior, mean, std)) < error
    assert error < 0.1


def test_kl_to_a_mixture_of_one_scale_is_the_normals() -> None:
    mean, std = torch.randn(1000).double(), torch.rand(1000).double()
    found = ScaleMixture(0.5, 0.4, 0.4).kl(mean, std).sum()
    torch.testing.assert_close(found, Normal(0.4).kl(mean, std).sum(), rtol=0.1, atol=0)


def test_prior_json_round_trip() -> None:
    mean, std = torch.randn(4), torch.rand(4)
    for prior in (Normal(0.3), Normal(0.3, torch.randn(4)), ScaleMixture(0.2, 0.5, 0.01)):
        again = restore_prior(prior.name, prior.config(), prior.state_dict())
        torch.manual_seed(2)
        expected = prior.kl(mean, std)
        torch.manual_seed(2)
        assert torch.equal(again.kl(mean, std), expected)


@pytest.mark.parametrize("make", [lambda: Normal(0.0), lambda: Normal(-1.0), lambda: ScaleMixture(p=1.0)])
def test_prior_refuses_impossible_values(make: object) -> None:
    with pytest.raises(UserError):
        make()  # type: ignore[operator]


@given(st.floats(1e-30, 1e3))
def test_softplus_inverse_is_exact_over_all_scales(std: float) -> None:
    value = torch.tensor(std, dtype=torch.float64)
    torch.testing.assert_close(F.softplus(softplus_inverse(value)), value, rtol=1e-9, atol=0)


def test_softplus_keeps_a_std_of_zero() -> None:
    posterior = mean_field(torch.randn(3), torch.zeros(3))
    assert torch.equal(posterior.moments()[1].detach(), torch.zeros(3))
    posterior.sample().sum().backward()
    assert torch.equal(posterior.rho.grad, torch.zeros(3))


# -- annealing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annealing", "start", "values"),
    [
        ("constant", None, [0.5, 0.5, 0.5, 0.5]),
        ("linear-up", None, [0.0, 0.125, 0.25, 0.5]),
        ("linear-up", 0.1, [0.1, 0.2, 0.3, 0.5]),
        ("linear-down", None, [0.2, 0.275, 0.35, 0.5]),
        ("linear-down", 0.9, [0.9, 0.8, 0.7, 0.5]),
        ("warm-up", None, [0.0, 0.25, 0.5, 0.5]),
    ],
)
def test_annealing_at_0_a_quarter_a_half_and_the_end(annealing: str, start: float | None, values: list[float]) -> None:
    found = [kl_weight(progress, 0.5, annealing, start) for progress in (0.0, 0.25, 0.5, 1.0)]  # type: ignore[arg-type]
    assert found == pytest.approx(values)


def test_annealing_of_the_papers() -> None:
    """PBN falls from 0.2 to 0.01 over the epochs; SSVI warms up over the first half."""
    assert [kl_weight(e / 10, 0.01, "linear-down") for e in (0, 5, 10)] == pytest.approx([0.2, 0.105, 0.01])
    assert [kl_weight(e / 10, 0.01, "warm-up") for e in (0, 2, 5, 9)] == pytest.approx([0, 0.004, 0.01, 0.01])


def test_annealing_refuses_unknown_names_early() -> None:
    with pytest.raises(UserError, match="unknown annealing 'linear'"):
        pb.MeanFieldVI(annealing="linear")  # type: ignore[arg-type]


def test_likelihood_names_an_output_that_is_not_a_tensor() -> None:
    for likelihood, target in ((pb.Categorical(), torch.zeros(2).long()), (pb.GaussianNoise(), torch.zeros(2))):
        with pytest.raises(pb.UserError, match="returns a tuple, not a tensor: wrap it"):
            likelihood.nll((torch.zeros(2, 3), None), target)  # type: ignore[arg-type]


def test_own_prior_is_saved_and_loaded(tmp_path: Path) -> None:
    class Laplace(Prior):
        name = "test-laplace"

        def __init__(self, scale: float = 1.0) -> None:
            super().__init__()
            self.scale = scale

        def kl(self, mean: Tensor, std: Tensor) -> Tensor:
            return (mean.abs() / self.scale).log1p() + std

    try:
        net = pb.bayesianize(nn.Linear(3, 2), "bbb")
        net.prior = Laplace(2.0)
        pb.save(net, tmp_path / "net.pocket")
        again = pb.load(tmp_path / "net.pocket", nn.Linear(3, 2))
        assert torch.equal(pb.kl(again), pb.kl(net))
    finally:
        del PRIORS["test-laplace"]
    with pytest.raises(UserError, match="unknown prior 'test-laplace'"):
        pb.load(tmp_path / "net.pocket", nn.Linear(3, 2))
