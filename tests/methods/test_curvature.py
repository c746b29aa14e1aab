"""Stds from curvature: exact in linear regression, for every storage, and rejected where meaningless."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.methods.curvature import curvature_stds, diagonal_curvature

NOISE = 0.5


def regression(n: int = 400) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator) * torch.tensor([1.0, 2.0, 0.5])
    return x, x.sum(1, keepdim=True)


def classes(n: int = 300) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=generator)
    return x, (x[:, :3].sum(1) > 0).long()


def trained(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    net = pb.fit("map", model, classes(), epochs=8, lr=0.01, batch_size=32, progress=False, seed=seed)
    assert isinstance(net, pb.Network)
    return net.to_module()


def test_curvature_of_linear_regression_is_exact() -> None:
    """`h_i = mean x_i^2 / noise^2`, the diagonal of the exact Hessian, whatever the labels."""
    x, y = regression()
    net = pb.bayesianize(nn.Linear(3, 1, bias=False), "bbb")
    net.likelihood = pb.GaussianNoise(NOISE)
    found, count = diagonal_curvature(net, [(x, y)] * 10, chunk=4)
    assert count == 4000
    torch.testing.assert_close(found, x.square().mean(0) / NOISE**2, rtol=0.25, atol=0)


@pytest.mark.parametrize("method", ["bbb", "lrt", "vdp", "pbn", "ssvi", "2dgbnn", "ivon"])
def test_bayesianize_gives_every_storage_stds_from_data(method: str, learning_seed: int) -> None:
    settings: dict[str, object] = {"k": 8, "n_min": 4} if method == "2dgbnn" else {}
    settings |= {"mean_init": "model", "density": 0.9} if method == "ssvi" else {}
    model = trained(learning_seed)
    net = pb.bayesianize(model, method, data=classes(), **settings)
    assert net.method == method
    std = net.posterior.moments()[1]
    assert bool((std > 0).any())
    plain = pb.evaluate(pb.bayesianize(model, "map"), classes())
    assert pb.evaluate(net, classes(), samples=8)["accuracy"] > plain["accuracy"] - 0.1


def test_bayesianize_gives_important_weights_smaller_stds() -> None:
    """An input that is always 0 has no curvature, so its weights keep the prior's std."""
    x, y = classes()
    x = torch.cat([x[:, :5], torch.zeros(len(x), 1)], 1)
    net = pb.bayesianize(nn.Linear(6, 2), "bbb", data=(x, y), delta=1.0)
    std = net.posterior.moments()[1].detach().view(2, 6)
    torch.testing.assert_close(std[:, 5], torch.ones(2))
    assert float(std[:, :5].max()) < 0.5


def test_std_init_curvature_starts_training() -> None:
    net = pb.fit(pb.MeanFieldVI(std_init="curvature"), trained(), classes(), epochs=1, batch_size=32, progress=False)
    assert net.first_stds is not None
    assert len(net.first_stds.stds.unique()) > 10


@pytest.mark.parametrize("method", ["laplace", "swag"])
def test_bayesianize_refuses_what_needs_data(method: str) -> None:
    with pytest.raises(pb.UserError, match="needs data for its stds"):
        pb.bayesianize(nn.Linear(2, 2), method)


def test_curvature_refuses_bad_input_in_one_line() -> None:
    model, data = nn.Linear(6, 2), classes()
    for settings, message in (
        ({"examples": 10}, "must be at least 300"),
        ({"delta": 0.0}, "must be positive"),
        ({"delta": -1.0}, "must be positive"),
    ):
        with pytest.raises(pb.UserError, match=message):
            pb.bayesianize(model, "bbb", data=data, **settings)  # type: ignore[arg-type]
    with pytest.raises(pb.UserError, match="needs data="):
        pb.bayesianize(model, "bbb", delta=1.0)
    with pytest.raises(pb.UserError, match="omit data="):
        pb.bayesianize(model, "map", data=data)
    with pytest.raises(pb.UserError, match="must be positive"):
        curvature_stds(torch.ones(2), 5, 0.0)
    nn.init.constant_(model.weight, float("nan"))
    with pytest.raises(pb.UserError):
        pb.bayesianize(model, "bbb", data=data)
