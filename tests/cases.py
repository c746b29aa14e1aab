"""Test cases, one per method; the contract tests run all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import pocketbayes as pb


@dataclass(frozen=True)
class Case:
    """A method with settings that train on the tiny data within a second.

    Attributes:
        name: The registry name.
        make: The method.
        exact_moments: Whether a draw's mean and std are exactly those of `moments`.
        has_kl: Whether a random posterior has a KL to the prior; a discrete one does not.
        trainable: Whether the posterior has parameters that gradients reach after `init`.
    """

    name: str
    make: Callable[[], pb.Method]
    exact_moments: bool = True
    has_kl: bool = True
    trainable: bool = True


CASES = [
    Case("map", pb.Deterministic),
    Case("ensemble", lambda: pb.Ensemble(members=2)),
    Case("mc-dropout", lambda: pb.MCDropout(rate=0.2), has_kl=False),
    Case("swag", lambda: pb.SWAG(swag_epochs=3, rank=2)),
    Case("laplace", pb.Laplace),
    Case(
        "int8",
        lambda: pb.Int8(sigma_bits=4, method=pb.MeanFieldVI(propagation="local", std_init=0.05)),
        trainable=False,
    ),
    Case("bbb", lambda: pb.MeanFieldVI(std_init=0.05)),
    Case("lrt", lambda: pb.MeanFieldVI(propagation="local", std_init=0.05)),
    Case(
        "2dgbnn",
        lambda: pb.WeightSharing(k=6, n_min=4, tau_w=0.3, pretrain_epochs=1, refresh_epochs=1, draw="shared-noise"),
    ),
    Case("ssvi", lambda: pb.SSVI(density=0.3, swap_every=2, swap_until=1.0)),
    Case("rigl", lambda: pb.RigL(density=0.3, swap_every=2, swap_until=1.0)),
    Case("pbn", lambda: pb.PBN(rate=0.2, pretrain_epochs=1, train_samples=2)),
    Case("vdp", lambda: pb.VDP(std_init=0.05)),
    Case("vdp-full", lambda: pb.FullCovarianceVDP(std_init=0.05)),
    Case("ivon", lambda: pb.IVON(std_init=0.05)),
    Case("rank1", pb.Rank1VI),
    Case("sparse-vd", lambda: pb.VariationalDropout(std_init=0.05)),
    Case("mbnn", lambda: pb.MaskedVI(std_init=0.05, penalty=0.0)),
    Case("flipout", lambda: pb.MeanFieldVI(propagation="flipout", std_init=0.05)),
]


class TinyNet(nn.Module):
    """A network with a convolution, batch norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().flatten(1))


def tiny_model(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return TinyNet()


def tiny_data(n: int = 48, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Return noisy images of three classes, each with a bright row at its own position."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = 0.3 * torch.randn(n, 1, 6, 6, generator=generator)
    x[torch.arange(n), 0, 2 * y] += 1.0
    return x, y


class Smooth(nn.Module):
    """A network without batch norm, so that parts of a batch are independent."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def smooth(seed: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return Smooth()


def untrained(case: Case, seed: int = 1) -> pb.Network | pb.Mixture:
    """Return the initial network of a case; `bayesianize` rejects methods that need data."""
    net = case.make().init(tiny_model(seed)).eval()
    for network in net if isinstance(net, pb.Mixture) else [net]:
        network.method = case.name
    return net
