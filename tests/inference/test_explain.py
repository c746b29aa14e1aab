"""Explanations: gradients against finite differences, captum's metrics against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pocketbayes as pb
from cases import CASES, Case, tiny_data, tiny_model, untrained
from pocketbayes.inference import explain


def network(propagation: str = "moments") -> pb.Network:
    net = pb.bayesianize(tiny_model(), pb.VDP(std_init=0.05))
    net.propagation = propagation
    return net.eval()


@pytest.mark.parametrize("propagation", ["mean", "sample", "moments", "moments-full"])
def test_saliency_is_the_gradient_of_the_probability(propagation: str) -> None:
    net = network().double()
    x = tiny_data(3)[0].double()
    answer = explain.probabilities(net, 4, propagation)
    torch.testing.assert_close(answer(x), answer(x))  # the same draws at every call
    target = answer(x).argmax(1)
    gradient = explain.saliency(net, x, absolute=False, samples=4, propagation=propagation)
    step = 1e-6 * torch.randn_like(x)
    with torch.no_grad():
        change = (answer(x + step) - answer(x - step)).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close((2 * step * gradient).flatten(1).sum(1), change, rtol=1e-3, atol=1e-10)
    assert torch.equal(explain.saliency(net, x, samples=4, propagation=propagation), gradient.abs())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_explain_takes_every_network(case: Case) -> None:
    net = untrained(case)
    x = tiny_data(3)[0]
    assert explain.saliency(net, x, samples=2).shape == x.shape
    assert float(explain.saliency(net, x, samples=2).max()) > 0


class Linear(nn.Module):
    """A network whose p(class 0) is almost linear in the input near 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1e-3 * self.layer(x)


def test_explain_is_faithful_for_a_linear_model() -> None:
    torch.manual_seed(0)
    plain = pb.bayesianize(Linear(), pb.Deterministic())
    x = torch.zeros(2, 4)
    assert float(explain.infidelity(plain, x).max()) < 1e-12
    assert float(explain.sensitivity_max(plain, x).max()) < 1e-3
    bent = network("mean")
    images = tiny_data(2)[0]
    assert float(explain.infidelity(bent, images, noise=1.0).min()) > 1e-8
    assert float(explain.sensitivity_max(bent, images, radius=0.5).min()) > 1e-3


def test_infidelity_follows_its_definition() -> None:
    net = network("mean")
    x = tiny_data(2)[0]
    answer = explain.probabilities(net)
    target = answer(x).argmax(1)
    gradient = explain.saliency(net, x, absolute=False)
    noise = 0.3 * torch.randn(4000, *x.shape)
    with torch.no_grad():
        moved = answer((x - noise).flatten(0, 1)).view(4000, 2, -1)
        change = (answer(x) - moved).gather(2, target.expand(4000, 2)[..., None])[..., 0]
        expected = ((noise * gradient).flatten(2).sum(2) - change).square().mean(0)
    torch.testing.assert_close(explain.infidelity(net, x, noise=0.3, draws=2000), expected, rtol=0.2, atol=0)


def test_explain_refuses_linear_propagation() -> None:
    with pytest.raises(pb.UserError, match="no gradient"):
        explain.saliency(network(), tiny_data(2)[0], propagation="linear")


def test_explain_refuses_a_regression() -> None:
    net = pb.bayesianize(nn.Linear(3, 1), pb.MeanFieldVI())
    net.likelihood = pb.GaussianNoise(0.1)
    with pytest.raises(pb.UserError, match="explanations need a classifier"):
        explain.saliency(net, torch.zeros(2, 3))
