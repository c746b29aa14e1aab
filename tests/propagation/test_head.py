"""Networks with only a random last layer: one pass of the rest, and the same predictions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.propagation.linear.gradients import looped_gradient
from pocketbayes.propagation.linear.taps import make_plan
from pocketbayes.propagation.sample import Head


class Features(nn.Module):
    """A module that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.layer(x).relu()


class Body(nn.Module):
    """Features, a layer, and what the case does around it."""

    def __init__(self, end: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.features, self.fc, self.end = Features(), nn.Linear(5, 3), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.fc, self.features(x))


def last_layer_only(model: nn.Module, bias: bool = False) -> pb.Network:
    net = pb.bayesianize(model, pb.MeanFieldVI(select="fc", bayesian_bias=bias, std_init=0.3))
    assert isinstance(net, pb.Network)
    return net.eval()


def laplace_of(model: nn.Module, hessian: str = "full") -> pb.Network:
    """Return a posterior over all weights with only the last layer random."""
    start = pb.bayesianize(model, pb.Deterministic())
    start.likelihood = pb.Categorical()
    data = torch.randn(40, 6), torch.arange(40) % 3
    net = pb.fit(pb.Laplace(prior_precision=1.0, hessian=hessian), start, data, progress=False)
    assert isinstance(net, pb.Network)
    return net


def twice(layer: nn.Linear, h: Tensor) -> Tensor:
    return layer(h) + layer(2 * h)


def noisy(layer: nn.Linear, h: Tensor) -> Tensor:
    return layer(h + torch.randn_like(h))


def changed(layer: nn.Linear, h: Tensor) -> Tensor:
    out = layer(h)
    h.add_(1)
    return out


def without_head(net: pb.Network, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> pb.Prediction:
    with monkeypatch.context() as patch:
        patch.setattr(Head, "find", classmethod(lambda cls, *_: None))
        return pb.predict(net, x, samples=7)


@pytest.mark.parametrize("bias", [False, True])
def test_head_runs_the_rest_once_with_the_same_answer(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, x = last_layer_only(Body(lambda layer, h: layer(h)), bias), torch.randn(9, 6)
    slow = without_head(net, x, monkeypatch)
    net.model.features.runs = 0
    fast = pb.predict(net, x, samples=7)
    assert net.model.features.runs == 1
    torch.testing.assert_close(fast.mean, slow.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast.std, slow.std, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hessian", ["full", "kron", "diag"])
@pytest.mark.parametrize("at_once", [1 << 22, 1])
def test_head_is_found_among_point_weights(hessian: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws run together, or one after the other if memory is short."""
    monkeypatch.setattr("pocketbayes.propagation.sample._AT_ONCE", at_once)
    torch.manual_seed(0)
    net, x = laplace_of(Body(lambda layer, h: layer(h)), hessian), torch.randn(9, 6)
    slow = without_head(net, x, monkeypatch)
    net.model.features.runs = 0
    torch.testing.assert_close(pb.predict(net, x, samples=7).std, slow.std, rtol=1e-5, atol=1e-6)
    assert net.model.features.runs == 1


@pytest.mark.parametrize(
    "end", [twice, noisy, changed, lambda layer, h: layer(h).relu(), lambda layer, h: F.normalize(layer.weight) @ h.T]
)
def test_head_is_not_used_for_inner_layers(
    end: Callable[[nn.Linear, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x = last_layer_only(Body(end)), torch.randn(3, 6)
    assert Head.find(net, x) is None
    assert torch.equal(pb.predict(net, x, samples=7).std, without_head(net, x, monkeypatch).std)


def test_head_needs_a_single_random_layer() -> None:
    net = pb.bayesianize(Body(lambda layer, h: layer(h)), pb.MeanFieldVI()).eval()
    assert Head.find(net, torch.randn(2, 6)) is None
    assert net.model.features.runs == 0


def test_head_gradients_stop_at_point_weights() -> None:
    torch.manual_seed(0)
    net, x = laplace_of(Body(lambda layer, h: layer(h))), torch.randn(4, 6)
    plan = make_plan(net.model, net.layout, net.posterior.weight_means(), net.posterior.random_slots(), x)
    assert plan is not None
    assert [net.layout.slots[number].name for number in plan.slots] == ["fc.weight"]
    found = net.linear(x, "predicted")
    direction = F.one_hot(found.index[:, 0], 3).float()
    gradient = looped_gradient(net.model, net.posterior, x, direction)
    expected = net.posterior.project(gradient).square().sum(1)
    torch.testing.assert_close(found.variance[:, 0], expected)
