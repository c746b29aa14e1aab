"""Partial Bayesian networks: selection of weights, and that only these are random."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from cost_model import Cost, cost_model
from pocketbayes.methods.base import Start
from pocketbayes.methods.curvature import diagonal_curvature
from pocketbayes.methods.sensitivity import largest, largest_per_slot, sensitivities
from pocketbayes.network import Network
from pocketbayes.posteriors import Partial


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.0000002]), min_size=1, max_size=40), st.data())
@settings(max_examples=60, deadline=None)
def test_largest_is_exact_under_ties(values: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(values)))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        score = torch.tensor(values, dtype=dtype)
        index = largest(score, count)
        assert len(index) == count == len(index.unique())
        assert bool((index.diff() > 0).all())
        chosen = torch.zeros(len(values), dtype=torch.bool)
        chosen[index] = True
        if 0 < count < len(values):
            assert score[chosen].min() >= score[~chosen].max()
            border = score[chosen].min()
            ties = (score == border).nonzero().flatten()
            kept = chosen[ties]
            assert bool((kept.int().diff() <= 0).all()), "of equal scores the first ones are kept"


def network_with_likelihood(dtype: torch.dtype = torch.float64) -> Network:
    net = pb.bayesianize(tiny_model().to(dtype), pb.Deterministic())
    net.likelihood = pb.Categorical()
    return net


@pytest.mark.parametrize("kind", ["gradient", "output", "squared"])
def test_sensitivities_agree_with_finite_differences(kind: str) -> None:
    net = network_with_likelihood()
    x, y = tiny_data(6)
    x = x.double()
    groups = [(x[i : i + 1], y[i : i + 1]) for i in range(6)] if kind == "squared" else [(x[:3], y[:3]), (x[3:], y[3:])]
    score = sensitivities(net, [(x[:3], y[:3]), (x[3:], y[3:])], kind)  # type: ignore[arg-type]
    flat = net.posterior.moments()[0].detach()
    step = 1e-6
    for i in (0, 5, 30, 100):
        change = torch.zeros_like(flat)
        change[i] = step
        slopes = []
        for part_x, part_y in groups:
            values = [
                out.mean() if kind == "output" else net.likelihood.nll(out, part_y)
                for out in (net.run_at(flat + s * change, part_x).detach() for s in (1, -1))
            ]
            slopes.append((values[0] - values[1]) / (2 * step))
        slope = torch.stack(slopes)
        expected = slope.square().mean().sqrt() if kind == "squared" else slope.abs().mean()
        torch.testing.assert_close(score[i], expected, rtol=1e-4, atol=1e-9)


def test_sensitivities_leave_the_network_unchanged() -> None:
    net = network_with_likelihood().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x, y = tiny_data(6)
    sensitivities(net, [(x.double(), y)])
    assert net.training
    assert net.model.norm.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_pbn_counts_trainable_values_as_stated() -> None:
    model = tiny_model()
    net = pb.bayesianize(model, pb.PBN(rate=0.1))
    n = net.layout.size
    points = sum(p.numel() for p in model.parameters()) - n
    assert pb.census(net).trainable == n + round(0.1 * n) + points
    assert net.posterior.noise_size == round(0.1 * n)


def test_pbn_keeps_optimiser_state_for_chosen_stds_only() -> None:
    net = pb.bayesianize(tiny_model(), pb.PBN(rate=0.1))
    optimizer = pb.Training(optimizer="adamw").make_optimizer(net)
    net(tiny_data()[0]).sum().backward()
    optimizer.step()
    sizes = [state["exp_avg"].numel() for state in optimizer.state.values()]
    assert sum(sizes) == pb.census(net).trainable


def test_pbn_rate_one_is_mean_field_and_zero_deterministic() -> None:
    model = tiny_model()
    whole = pb.bayesianize(model, pb.PBN(rate=1.0))
    field = pb.bayesianize(model, pb.MeanFieldVI())
    with torch.no_grad():
        field.posterior.rho.copy_(whole.posterior.rho)
    noise = torch.randn(field.layout.size)
    torch.testing.assert_close(whole.posterior.sample(noise), field.posterior.sample(noise))
    torch.testing.assert_close(pb.kl(whole), pb.kl(field))
    nothing = pb.bayesianize(model, pb.PBN(rate=0.0))
    point = pb.bayesianize(model, pb.Deterministic())
    x = tiny_data()[0]
    torch.testing.assert_close(pb.predict(nothing, x).mean, pb.predict(point, x).mean)
    assert float(pb.kl(nothing).detach()) == 0


def test_pbn_rate_zero_trains_like_deterministic() -> None:
    settings = {"epochs": 2, "batch_size": 16, "lr": 1e-2, "optimizer": "sgd", "progress": False}
    partial = pb.fit(pb.PBN(rate=0.0, pretrain_epochs=0), tiny_model(), tiny_data(), **settings)
    point = pb.fit(pb.Deterministic(), tiny_model(), tiny_data(), **settings)
    torch.testing.assert_close(partial.posterior.mean, point.posterior.mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prior", ["normal", "pretrained", "scale-mixture"])
def test_pbn_kl_counts_the_chosen_weights_only(prior: str) -> None:
    net = pb.bayesianize(tiny_model(), pb.PBN(rate=0.3, prior=prior, prior_std=0.5))
    with torch.no_grad():
        own = torch.stack([pb.kl(net) for _ in range(200)])
        generic = torch.stack([super(Partial, net.posterior).kl(net.prior) for _ in range(200)])
    errors = 6 * float(((own.var() + generic.var()) / 200).sqrt())  # a scale mixture's KL is an estimate by draws
    assert prior == "scale-mixture" or errors < 1e-3
    torch.testing.assert_close(own.mean(), generic.mean(), rtol=1e-4, atol=1e-3 + errors)


def test_pbn_chooses_by_layer_and_by_controls() -> None:
    start = Start.of(tiny_model())
    score = torch.rand(start.layout.size)
    for slot in start.layout.slots:
        index = largest_per_slot(score, start.layout, 0.25)
        assert ((index >= slot.start) & (index < slot.stop)).sum() == round(0.25 * slot.size)
    for control, number in (("first-layer", 0), ("last-layer", -1)):
        net = pb.bayesianize(tiny_model(), pb.PBN(rate=0.05, sensitivity=control))
        fractions = net.posterior.fractions()
        name = start.layout.slots[number].name
        assert fractions[name] > 0
        assert all(value == 0 for key, value in fractions.items() if key != name)


@pytest.mark.parametrize("rule", ["gradient", "curvature"])
def test_pbn_chooses_the_largest_scores(rule: str) -> None:
    settings = {"epochs": 0, "progress": False}
    trained = pb.fit(pb.Deterministic(), tiny_model(), tiny_data(), epochs=3, progress=False)
    net = pb.fit(pb.PBN(rate=0.1, sensitivity=rule), trained, tiny_data(), **settings)
    x, y = tiny_data()
    score = sensitivities(trained, [(x, y)]) if rule == "gradient" else diagonal_curvature(trained, [(x, y)])[0]
    assert torch.equal(net.posterior.index, largest(score, len(net.posterior.index)))


class Cubic(nn.Module):
    """A network with one hidden layer of 100 units."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_pbn_uncertainty_grows_outside_the_training_interval(learning_seed: int) -> None:
    torch.manual_seed(learning_seed)
    x = torch.linspace(-4, 4, 200)[:, None]
    y = (x**3 + 3 * torch.randn_like(x)) / 30
    method = pb.PBN(rate=0.5, pretrain_epochs=60, rho_mean=-3.0, beta=1.0, annealing="constant")
    settings = {"epochs": 60, "batch_size": 50, "lr": 1e-2, "seed": learning_seed, "progress": False}
    net = pb.fit(method, Cubic(), (x, y), **settings)
    inside = pb.predict(net, torch.linspace(-3, 3, 50)[:, None], 100).epistemic.mean()
    outside = pb.predict(net, torch.tensor([[-6.0], [6.0]]), 100).epistemic.mean()
    assert outside > 1.5 * inside


def test_pbn_names_wrong_settings() -> None:
    with pytest.raises(pb.UserError, match="rate must lie between 0 and 1"):
        pb.PBN(rate=5)
    with pytest.raises(pb.UserError, match="unknown sensitivity 'gradien'"):
        pb.PBN(sensitivity="gradien")


def test_pbn_cost_model_is_that_of_the_paper() -> None:
    cost = cost_model
    assert cost("deterministic").passes == 3
    assert cost("ensemble", members=5).passes == 15
    assert cost("vi", samples=5) == Cost(14, 2, 2)
    assert cost("pbn", samples=5, rate=0.05).passes == pytest.approx(7.35)
    assert cost("pbn", rate=1.0).passes == cost("vi").passes
    with pytest.raises(pb.UserError, match="unknown cost model"):
        cost("pnb")
    with pytest.raises(pb.UserError, match="rate=5"):
        cost("pbn", rate=5)


def test_pbn_stores_what_the_cost_model_says() -> None:
    net = pb.bayesianize(tiny_model(), pb.PBN(rate=0.1))
    values = sum(p.numel() for p in net.posterior.parameters())
    assert values / net.layout.size == pytest.approx(cost_model("pbn", rate=0.1).parameters, abs=0.005)


def test_pbn_output_variance_is_that_of_draws() -> None:
    trained = pb.fit(pb.Deterministic(), tiny_model(), tiny_data(), epochs=5, progress=False)
    net = pb.fit(pb.PBN(rate=0.3, rho_mean=-4.5), trained, tiny_data(), epochs=0, progress=False)
    x = tiny_data(8)[0]
    mean, std = (moment.detach() for moment in net.posterior.moments())
    jacobian = torch.func.jacrev(lambda flat: net.run_at(flat, x))(mean)
    expected = (jacobian.square() * std.square()).sum(-1)
    predicted = net.linear(x, "all").variance
    torch.testing.assert_close(predicted, expected, rtol=1e-4, atol=1e-8)
    with torch.no_grad():
        drawn = torch.stack([net(x) for _ in range(3000)]).var(0)
    torch.testing.assert_close(predicted, drawn, rtol=0.15, atol=1e-5)


def test_largest_takes_the_first_of_equal_scores() -> None:
    score = torch.randint(0, 5, (200,), generator=torch.Generator().manual_seed(0)).float()
    for count in (0, 1, 37, 200):
        expected = torch.sort(score, descending=True, stable=True).indices[:count].sort().values
        assert torch.equal(largest(score, count), expected)
