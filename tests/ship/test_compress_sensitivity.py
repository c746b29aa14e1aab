"""Tests of where bits go: the sensitivity of layers and codebooks that are balanced by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.network import Network
from pocketbayes.ship.compression.coding import Measured, Recipe, code
from pocketbayes.ship.compression.measurements import MIN_SENSITIVITY, layer_sensitivity


class TwoBranches(nn.Module):
    """Two equal linear layers; the second has a share in the output."""

    def __init__(self, share: float, wrap: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(100, 30), nn.Linear(100, 30)
        self.second.load_state_dict(self.first.state_dict())
        self.share, self.wrap = share, wrap

    def forward(self, x: Tensor) -> Tensor:
        return self.wrap(self.first(x) + self.share * self.second(x))


def network(model: nn.Module) -> Network:
    net = pb.bayesianize(model, pb.Deterministic())
    assert isinstance(net, Network)
    return net


@pytest.mark.parametrize("share", [0.01, 0.0])
def test_layer_sensitivity_is_relative_to_the_outputs(share: float) -> None:
    found = layer_sensitivity(network(TwoBranches(share)), [torch.randn(40, 100)])
    assert found is not None
    assert float(found[1] / found[0]) == pytest.approx(max(share, MIN_SENSITIVITY), rel=1e-3)


def test_layer_sensitivity_averages_over_small_batches() -> None:
    net, x = network(TwoBranches(0.5)), torch.randn(80, 100)
    torch.testing.assert_close(layer_sensitivity(net, list(x.split(16))), layer_sensitivity(net, [x]))


def test_layer_sensitivity_needs_a_differentiable_model() -> None:
    assert layer_sensitivity(network(TwoBranches(1.0, Tensor.detach)), [torch.randn(8, 100)]) is None


@pytest.mark.parametrize("units", ["layer", "filter"])
def test_code_gives_sensitive_layers_more_bits(units: str) -> None:
    net = network(TwoBranches(1.0))
    measured = [Measured(sensitivity=torch.tensor([1.0, 100.0]))]
    bits = {}
    for balanced in (False, True):
        made = code(net, Recipe(0.01, units, balanced=balanced), measured).net  # type: ignore[arg-type]
        assert isinstance(made, Network)
        bits[balanced] = list(made.posterior.code_bits().values())
    assert bits[False][0] == pytest.approx(bits[False][1])
    assert bits[True][1] > bits[True][0] + 2
    assert sum(bits[True]) == pytest.approx(sum(bits[False]), abs=1.5)
