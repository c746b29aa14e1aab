"""Masked Bayesian networks: units, the Markov chain of masks, and stored weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.methods.masked import draw_mask, hidden_units
from pocketbayes.posteriors import Sparse


def test_hidden_units_number_the_rows_of_all_but_the_last() -> None:
    layout = pb.Layout.of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert hidden_units(layout).tolist() == [0, 0, 1, 1, 2, 2] + [-1] * 6


def network_with_an_idle_unit() -> tuple[pb.Network, tuple[torch.Tensor, torch.Tensor]]:
    """Return a network of two hidden units, of which only the first reaches the output."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[1.0], [1.0]])
    model[2].weight.data = torch.tensor([[3.0, 0.0], [-3.0, 0.0]])
    net = pb.bayesianize(model, pb.Deterministic()).eval()
    net.likelihood = pb.Categorical()
    return net, (torch.ones(8, 1), torch.zeros(8, dtype=torch.int64))


def test_mask_drops_an_idle_unit_and_keeps_a_needed_one() -> None:
    """The idle one saves 20 nats and costs none; the needed one saves 20 and costs about 690."""
    net, batch = network_with_an_idle_unit()
    mean, unit = net.posterior.moments()[0].detach(), hidden_units(net.layout)
    with torch.no_grad():
        kept = draw_mask(net, mean, unit, batch, examples=1000, penalty=20.0, moves=100)
    assert kept.tolist() == [True, False, True, True, True, True]


def test_mask_without_moves_keeps_every_weight() -> None:
    net = pb.fit(pb.MaskedVI(moves=0), tiny_model(), tiny_data(), epochs=1, batch_size=16, progress=False)
    assert isinstance(net.posterior, Sparse)
    assert len(net.posterior.index) == net.layout.size


def test_masked_vi_stores_whole_units() -> None:
    method = pb.MaskedVI(penalty=1e6)
    net = pb.fit(method, tiny_model(), tiny_data(), epochs=1, batch_size=16, progress=False)
    assert isinstance(net.posterior, Sparse)
    unit, present = hidden_units(net.layout), net.posterior.moments()[1] > 0
    assert bool(present[unit < 0].all())
    assert not bool(present[unit >= 0].any())


@pytest.mark.parametrize("settings", [{"penalty": -1.0}, {"moves": -1}])
def test_masked_vi_refuses_negative_settings(settings: dict[str, float]) -> None:
    with pytest.raises(pb.UserError, match="negative"):
        pb.MaskedVI(**settings)  # type: ignore[arg-type]
