"""VDP++: losses on Gaussian outputs, training without draws, noise in the inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.likelihoods import VARIANCE_FLOOR


def logits(scale: float = 0.1, shape: tuple[int, ...] = (6, 4)) -> pb.Gaussian:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return pb.Gaussian(mean, scale * torch.rand(shape, generator=generator, dtype=torch.float64))


def labels(shape: tuple[int, ...] = (6,)) -> Tensor:
    return torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(1))


def test_vdp_cross_entropy_is_the_expected_nll() -> None:
    output, target = logits(), labels()
    noise = torch.randn(200_000, 6, 4, dtype=torch.float64)
    draws = output.loc + output.stddev * noise
    expected = F.cross_entropy(draws.flatten(0, 1), target.repeat(200_000))
    assert float(pb.Categorical().nll(output, target)) == pytest.approx(float(expected), rel=2e-3)


def test_vdp_gaussian_nll_is_the_density_of_the_label() -> None:
    output, target = logits(), labels()
    probs = output.loc.softmax(1)
    jacobian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    var = (jacobian.square() @ output.variance[..., None])[..., 0] + VARIANCE_FLOOR
    density = torch.distributions.Normal(probs, var.sqrt()).log_prob(F.one_hot(target, 4).double())
    loss = pb.Categorical(gaussian_loss="gaussian-nll").nll(output, target)
    torch.testing.assert_close(loss, -density.sum(1).mean())


@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 3, 3)], ids=["examples", "pixels"])
def test_vdp_cross_entropy_without_variance_is_the_usual(shape: tuple[int, ...]) -> None:
    output, target = logits(0.0, shape), labels((shape[0], *shape[2:]))
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    for likelihood in (pb.Categorical(), pb.Categorical(weights), pb.Categorical(weights, ignore_index=2)):
        torch.testing.assert_close(likelihood.nll(output, target), likelihood.nll(output.loc, target))
    soft = torch.rand(shape, dtype=torch.float64).softmax(1)
    torch.testing.assert_close(pb.Categorical().nll(output, soft), pb.Categorical().nll(output.loc, soft))


@pytest.mark.parametrize("loss", ["cross-entropy", "gaussian-nll"])
def test_vdp_ignores_ignored_labels_and_names_wrong_ones(loss: Any) -> None:
    output, target = logits(), labels()
    target[2:] = -1
    likelihood = pb.Categorical(ignore_index=-1, gaussian_loss=loss)
    torch.testing.assert_close(
        likelihood.nll(output, target), likelihood.nll(pb.Gaussian(output.loc[:2], output.variance[:2]), target[:2])
    )
    with pytest.raises(IndexError, match="Target 9"):
        likelihood.nll(output, torch.full((6,), 9))


@pytest.mark.parametrize("noise", ["predicted", 0.3])
def test_vdp_regression_losses_take_gaussian_outputs(noise: Any) -> None:
    output = logits(shape=(6, 2))
    size = 1 if noise == "predicted" else 2
    y = torch.randn(6, size, dtype=torch.float64)
    expected_loss, density = pb.GaussianNoise(noise), pb.GaussianNoise(noise, gaussian_loss="gaussian-nll")
    mean, std = density.moments(output.loc)
    var = output.variance[:, :size]
    marginal = torch.distributions.Normal(mean, (std.square() + var).sqrt())
    torch.testing.assert_close(density.nll(output, y), -marginal.log_prob(y).sum(1).mean())
    plain = pb.GaussianNoise(noise).nll(output.loc, y)
    torch.testing.assert_close(expected_loss.nll(output, y), plain + (var / (2 * std.square())).sum(1).mean())


def test_vdp_names_an_unknown_loss() -> None:
    with pytest.raises(pb.UserError, match="unknown loss 'hinge'"):
        pb.VDP(loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(pb.UserError, match="unknown activation"):
        pb.VDP(activation="sampled")  # type: ignore[arg-type]
    with pytest.raises(pb.UserError, match="does not sample"):
        pb.VDP(train_samples=2)


@pytest.mark.parametrize("activation", ["taylor", "exact"])
@pytest.mark.parametrize("loss", ["cross-entropy", "gaussian-nll"])
def test_vdp_learns_without_drawing(loss: Any, activation: Any, tmp_path: Path, learning_seed: int) -> None:
    method = pb.VDP(loss=loss, activation=activation, input_var=0.01)
    model, data = tiny_model(learning_seed), tiny_data(96, learning_seed)
    net = pb.fit(method, model, data, epochs=30, batch_size=16, lr=1e-2, progress=False, seed=learning_seed)
    assert pb.evaluate(net, data)["accuracy"] > 0.9
    assert isinstance(net, pb.Network)
    assert net.likelihood.gaussian_loss == loss
    path = tmp_path / "net.pocket"
    pb.save(net, path)
    again = pb.load(path, tiny_model())
    assert isinstance(again, pb.Network)
    assert again.input_var == 0.01
    assert again.likelihood.gaussian_loss == loss
    x = tiny_data()[0]
    assert torch.equal(pb.predict(net, x).std, pb.predict(again, x).std)
    with torch.no_grad():
        before = torch.get_rng_state()
        net(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_vdp_data_reach_means_and_stds() -> None:
    net = pb.bayesianize(tiny_model(), pb.VDP())
    x, y = tiny_data()
    for loss in ("cross-entropy", "gaussian-nll"):
        net.zero_grad()
        pb.Categorical(gaussian_loss=loss).nll(net(x), y).backward()
        assert float(net.posterior.mean.grad.abs().sum()) > 0
        assert float(net.posterior.rho.grad.abs().sum()) > 0


def test_vdp_input_noise_widens_the_answer() -> None:
    net = pb.bayesianize(tiny_model(), pb.VDP())
    x = tiny_data()[0]
    narrow = pb.predict(net, x)
    net.input_var = 0.5
    wide = pb.predict(net, x)
    assert bool((wide.std >= narrow.std).all())
    assert float(wide.epistemic.mean()) > 2 * float(narrow.epistemic.mean())


def test_vdp_learns_a_regression(learning_seed: int) -> None:
    torch.manual_seed(learning_seed)
    x = torch.linspace(-2, 2, 80)[:, None]
    y = x.sin() + 0.1 * torch.randn(80, 1)
    model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    net = pb.fit(
        pb.VDP(loss="gaussian-nll"),
        model,
        (x, y),
        epochs=60,
        batch_size=20,
        lr=2e-2,
        progress=False,
        seed=learning_seed,
    )
    measures = pb.evaluate(net, (x, y))
    assert measures["rmse"] < 0.3
    far = pb.predict(net, torch.tensor([[0.0], [8.0]])).epistemic
    assert float(far[1]) > float(far[0])


def test_vdp_finds_the_best_mean_field_posterior() -> None:
    """The moments of a linear model are exact, so the objective is the ELBO itself, without noise."""
    torch.manual_seed(0)
    x = torch.randn(60, 3) @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]]) + 0.5 * torch.randn(60, 1)
    precision = x.double().T @ x.double() / 0.5**2 + torch.eye(3).double()
    mean = torch.linalg.solve(precision, x.double().T @ y.double() / 0.5**2).flatten()
    method = pb.VDP(std_init=0.1, prior_std=1.0, beta=1.0)
    net = pb.fit(
        method, nn.Linear(3, 1, bias=False), (x, y), likelihood=pb.GaussianNoise(0.5),
        epochs=600, batch_size=60, lr=0.02, schedule="cosine", progress=False,
    )  # fmt: skip
    got_mean, got_std = (moment.detach().double() for moment in net.posterior.moments())
    torch.testing.assert_close(got_mean, mean, rtol=0.01, atol=2e-3)
    torch.testing.assert_close(got_std, precision.diag().rsqrt(), rtol=0.02, atol=0)


def test_vdp_input_noise_of_a_linear_layer_is_exact() -> None:
    model = nn.Linear(4, 2, bias=False)
    net = pb.bayesianize(model, pb.VDP(std_init=0.1, input_var=0.3))
    x = torch.randn(5, 4)
    weight = model.weight.detach()
    expected = x.square() @ torch.full((4, 2), 0.01) + 0.3 * (weight.square() + 0.01).sum(1)
    torch.testing.assert_close(net(x).variance.detach(), expected)


def test_vdp_row_variance_survives_the_file(tmp_path: Path) -> None:
    model = tiny_model()
    method = pb.VDP(variance="row", std_init=0.05)
    net = pb.fit(method, model, tiny_data(), epochs=2, batch_size=16, lr=1e-2, progress=False)
    assert isinstance(net, pb.Network)
    assert net.census().stored == {"means": net.layout.size, "stds": 3 + 3}
    for view in net.layout.views(net.posterior.moments()[1]):
        assert torch.equal(view, view.flatten(1)[:, :1].view(-1, *(1,) * (view.ndim - 1)).expand_as(view))
    assert float((net.posterior.rho.detach() - net.posterior.rho[0].detach()).abs().max()) > 0  # they diverge
    pb.save(net, tmp_path / "net.pocket")
    again = pb.load(tmp_path / "net.pocket", tiny_model())
    x = tiny_data()[0]
    assert torch.equal(pb.predict(net, x).probs, pb.predict(again, x).probs)


def test_vdp_rows_start_from_the_mean_of_their_stds() -> None:
    net = pb.bayesianize(tiny_model(), pb.VDP(std_init="xavier"))
    rows = pb.VDP(variance="row").init(net)
    for one, each in zip(net.layout.views(net.posterior.moments()[1]), rows.layout.views(rows.posterior.moments()[1])):
        torch.testing.assert_close(one.flatten(1).mean(1), each.flatten(1)[:, 0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("start", [-1, 0, "xaver"])
@pytest.mark.parametrize("method", [pb.VDP, pb.MeanFieldVI, pb.WeightSharing])
def test_vdp_refuses_impossible_stds(method: type, start: object) -> None:
    with pytest.raises(pb.UserError, match="std_init must be a finite positive number, 'relative', 'curvature'"):
        method(std_init=start)
