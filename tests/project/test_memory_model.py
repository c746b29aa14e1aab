"""The formulas of benchmarks/memory_model.py against the bytes of real networks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.inference.metrics.cost import peak_memory
from pocketbayes.posteriors import Shared

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import memory_model
from memory_model import Block, Storage

WIDTH, DEPTH = 128, 4
WEIGHTS, POINTS = DEPTH * WIDTH**2, DEPTH * WIDTH


def shared_as_found(net: pb.Network) -> Storage:
    """The formula with the shares of outliers and ellipse points that this network has."""
    posterior = net.posterior
    assert isinstance(posterior, Shared)
    neighbours = posterior.blend_index.shape[1]
    outliers, ellipses = posterior.outliers / WEIGHTS, posterior.blends / WEIGHTS
    return memory_model.shared(outliers, ellipses, neighbours, centre=True)


CASES: dict[str, tuple[Callable[[], pb.Method], Callable[[pb.Network], Storage]]] = {
    "map": (pb.Deterministic, lambda net: memory_model.POINT),
    "bbb": (pb.MeanFieldVI, lambda net: memory_model.mean_field()),
    "lrt": (lambda: pb.MeanFieldVI(propagation="local"), lambda net: memory_model.mean_field(local=True)),
    "2dgbnn": (lambda: pb.WeightSharing(k=32, n_min=5, tau_w=0.08), shared_as_found),
    "ssvi": (lambda: pb.SSVI(density=0.125, kernel="dense"), lambda net: memory_model.sparse(0.125)),
    "pbn": (lambda: pb.PBN(rate=0.0625), lambda net: memory_model.partial(0.0625)),
}


def step(net: pb.Network, x: torch.Tensor) -> None:
    net(x).square().sum().backward()
    if (kl := net.kl()).requires_grad:
        (1e-3 * kl).backward()


@pytest.mark.parametrize("name", CASES)
def test_the_formulas_count_the_bytes_of_a_network(name: str) -> None:
    torch.manual_seed(0)
    make, storage_of = CASES[name]
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    net = pb.bayesianize(nn.Sequential(*layers), make()).train()
    x = torch.randn(2, WIDTH)
    optimizer = pb.Training().make_optimizer(net)
    step(net, x)
    net.zero_grad()
    peak = peak_memory(step, net, x)
    optimizer.step()
    storage, blocks = storage_of(net), [Block(WEIGHTS, POINTS)]
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)
    moments = [v for state in optimizer.state.values() for v in state.values() if v.ndim]
    gradients = sum(parameter.grad.nbytes for parameter in trained if parameter.grad is not None)
    found = sum(t.nbytes for t in (*trained, *moments, *net.buffers())) + gradients
    table = 4 * 4 * 2 * net.posterior.gaussians if isinstance(net.posterior, Shared) else 0  # K is no share of weights
    assert memory_model.kept(storage, blocks) + table == pytest.approx(found, abs=8)  # the count of swaps
    assert gradients == 4 * (storage.trained * WEIGHTS + POINTS) + table / 4
    assert storage.workspace * WEIGHTS == pytest.approx(peak - gradients, rel=0.12)


def test_sharding_divides_what_is_kept_and_rings_send_what_they_must() -> None:
    blocks = [Block(1000, 10) for _ in range(10)]
    storage = memory_model.mean_field()
    whole, alone = memory_model.replicated(storage, blocks, 2), memory_model.replicated(storage, blocks, 1)
    assert whole["held"] == alone["held"]
    assert alone["sent"] == 0
    assert whole["sent"] == 4 * (2 * 10_000 + 100)  # two devices: one half of twice the gradients
    held = [memory_model.sharded(storage, blocks, devices)["held"] for devices in (1, 10, 10**9)]
    at_rest = memory_model.kept(storage, blocks)
    assert held[0] - held[2] == pytest.approx(at_rest, rel=1e-6)
    assert held[1] - held[2] == pytest.approx(at_rest / 10, rel=1e-6)
    assert held[2] == pytest.approx((12 + 4) * 1000 + 8 * 10 + 4 * 1010, rel=1e-3)  # a block at work, one on its way
    sent = memory_model.sharded(storage, blocks, 10**9)["sent"]
    assert sent == pytest.approx(3 * 4 * (10_000 + 100), rel=1e-6)  # gathered twice, scattered once
    few = memory_model.sharded(memory_model.shared(0.0, 0.0), blocks, 10**9)["sent"]
    assert few == pytest.approx(2 * 4 * 10_000 + 3 * 4 * 100, rel=1e-6)  # indices twice; no weight has an owner


def test_blocks_and_activations_are_counted() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    assert memory_model.blocks_of(model, lambda name: name[0]) == [Block(24, 4), Block(16, 12)]
    plain = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Sigmoid())
    assert memory_model.activations(plain, (6,)) == 4 * (6 + 4)  # a layer keeps its input, a sigmoid its output
