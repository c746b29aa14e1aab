"""A propagation that a user writes, outside the package."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.propagation import PROPAGATIONS

SOURCE = textwrap.dedent(
    """
    import torch
    import pocketbayes as pb

    class Halfway(pb.Propagation):
        name = "halfway"
        draws = True

        def run(self, net, x, ask):
            mean, std = net.posterior.moments()
            return net.run_at(mean + 0.5 * std * torch.randn_like(mean), x)

    class Certain(pb.Propagation):
        name = "certain"

        def run(self, net, x, ask):
            return pb.Gaussian(net.run_at(net.posterior.moments()[0], x), torch.ones(len(x), 2))
    """
)


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (tmp_path / "own_propagation.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_propagation  # type: ignore[import-not-found]

    for known in (own_propagation.Halfway, own_propagation.Certain):
        PROPAGATIONS[known.name] = known()
    yield
    del PROPAGATIONS["halfway"], PROPAGATIONS["certain"]


def network() -> pb.Network:
    torch.manual_seed(0)
    net = pb.bayesianize(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), pb.MeanFieldVI(std_init=0.5))
    assert isinstance(net, pb.Network)
    return net


def test_propagation_subclass_predicts_from_a_seed() -> None:
    net, x = network(), torch.randn(5, 3)
    before = torch.get_rng_state()
    one, two, other = (pb.predict(net, x, 20, propagation="halfway", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.mean, two.mean)
    assert not torch.equal(one.mean, other.mean)
    assert torch.equal(torch.get_rng_state(), before)
    assert float(one.epistemic.mean()) < float(pb.predict(net, x, 20, propagation="sample").epistemic.mean())


def test_propagation_subclass_answers_with_a_gaussian() -> None:
    prediction = pb.predict(network(), torch.randn(5, 3), propagation="certain", readout="probit")
    assert bool((prediction.epistemic > 0).all())


def test_propagation_subclass_evaluates_and_trains() -> None:
    x = torch.randn(40, 3)
    y = (x[:, 0] > 0).long()
    net = network()
    right = pb.predict(net, x, samples=2, propagation="halfway", seed=3).mean.argmax(1) == y
    found = pb.evaluate(net, (x, y), samples=2, propagation="halfway", seed=3)
    assert found["accuracy"] == pytest.approx(float(right.float().mean()))
    with net.using("halfway"):
        net(x).sum().backward()
    assert bool(net.posterior.mean.grad.abs().sum() > 0)


def test_propagation_refuses_a_taken_name() -> None:
    with pytest.raises(pb.UserError, match="the propagation name 'mean' is taken"):

        class Again(pb.Propagation):
            name = "mean"

            def run(self, net: object, x: object, ask: object) -> None: ...
