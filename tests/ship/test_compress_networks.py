"""Compression of many architectures, calibrated on a hundred examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.files.network_file import Packed
from pocketbayes.likelihoods import GaussianNoise
from pocketbayes.plane.codes import entropy_bits
from pocketbayes.plane.trellis import drop_sides
from pocketbayes.ship.compression import compress, sweep
from pocketbayes.ship.compression.coding import CODED_PRECISION, Recipe, code

EXAMPLES = 100


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 24, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip


class Attention(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(1, 4, 32))
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        answers: Tensor = self.head(self.block(tokens).mean(1))
        return answers


class Recurrent(nn.Module):
    """An LSTM that predicts from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 24, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.head(self.cell(x)[0][:, -1])
        return answers


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(24, 4, 3, padding=1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 4))


IMAGES = (3, 8, 8)
NETWORKS: list[Any] = [
    pytest.param(depthwise, IMAGES, pb.Deterministic(), id="depthwise"),
    pytest.param(Attention, IMAGES, pb.Deterministic(), id="transformer"),
    pytest.param(Recurrent, (5, 6), pb.Deterministic(), id="lstm"),
    pytest.param(segmenter, IMAGES, pb.Deterministic(), id="segmentation"),
    pytest.param(perceptron, (20,), pb.MeanFieldVI(std_init=1e-3), id="mean-field"),
    pytest.param(perceptron, (20,), pb.PBN(), id="partial"),
    pytest.param(perceptron, (20,), pb.SSVI(density=0.3), id="sparse"),
]


@torch.no_grad()
def standardised(model: nn.Module, x: Tensor) -> nn.Module:
    """Scale the last layer in place so that all classes occur, some with confidence."""
    *_, last = (module for module in model.modules() if isinstance(module, (nn.Linear, nn.ConvTranspose2d)))
    assert last.bias is not None
    outputs = model.eval()(x)
    classes = outputs.transpose(0, 1).flatten(1)
    scale = 3 / float((classes - classes.mean(1, keepdim=True)).std())
    last.bias.copy_(scale * (last.bias - classes.mean(1)))
    last.weight.mul_(scale)
    return model


@pytest.mark.parametrize(("build", "shape", "method"), NETWORKS)
def test_compress_keeps_the_answers_of_every_network(
    build: Callable[[], nn.Module], shape: tuple[int, ...], method: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, *shape)
    net = pb.bayesianize(standardised(build(), x), method)
    assert isinstance(net, pb.Network)
    net.likelihood = pb.Categorical()
    wanted = pb.predict(net, x, samples=1, propagation="mean").mean
    y = wanted.argmax(1)
    y[:4] = torch.arange(4).view(4, *[1] * (y.ndim - 1))  # every class occurs
    found = compress(net, (x, y), (x, y), max_nll_loss=1.0, samples=1, progress=False)
    assert found.save(tmp_path / "net.pocket") == found.chosen.bytes < found.before.bytes
    assert isinstance(pb.load(tmp_path / "net.pocket", build()), pb.Network)
    coded = [trial for trial in found.trials if "lam" in trial.how]
    finest = min(coded, key=lambda trial: (trial.how["lam"], trial.nll))  # by the units that were chosen
    assert finest.packed is not None
    assert finest.bytes < found.before.bytes
    answers = pb.predict(finest.packed.unpack([build()]), x, samples=1, propagation="mean").mean
    assert (answers - wanted).abs().mean() < 0.15  # of four classes, some of them clear


def test_compress_codes_regressions_from_few_examples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    net = pb.bayesianize(model, pb.Deterministic())
    net.likelihood = GaussianNoise(0.1)  # type: ignore[union-attr]
    x = torch.randn(EXAMPLES, 8)
    y = model(x).detach()
    found = compress(net, (x, y), (x, y), max_nll_loss=0.5, progress=False)
    assert found.chosen.bytes < found.before.bytes
    assert "lam" in found.chosen.how


def test_compress_continues_until_a_size_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(sweep, "LAMBDAS", (0.01, 0.02))
    x = torch.randn(EXAMPLES, 60)
    net = pb.bayesianize(nn.Sequential(nn.Linear(60, 200), nn.ReLU(), nn.Linear(200, 3)), pb.Deterministic())
    net.likelihood = pb.Categorical()  # type: ignore[union-attr]
    data = x, torch.arange(EXAMPLES) % 3
    limit = 12_600 // 8 + 2000  # a bit for each weight, beside header and tables
    found = compress(net, data, data, max_bytes=limit, progress=False)
    assert found.chosen.bytes <= limit
    assert found.chosen.how["lam"] > 0.1


@pytest.mark.parametrize("lam", [0.02, 0.1, 0.3])
def test_compress_codes_take_little_more_than_the_entropy(lam: float) -> None:
    """Layers of different scales: the codes stay within 1 % of the sum of their entropies, tables counted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 200), nn.Linear(200, 400))
    with torch.no_grad():
        for layer, scale in zip(model, (1.0, 3.0, 0.5)):
            layer.weight.copy_(torch.randn_like(layer.weight) * scale)
    made = code(pb.bayesianize(model, pb.Deterministic()), Recipe(lam)).net
    assert isinstance(made, pb.Network)
    slots = made.layout.slots
    index = made.posterior.index.numpy().astype(np.int64)
    kept = drop_sides(index, len(made.posterior.centres), [slot.shape for slot in slots])[0]
    codes = torch.from_numpy(kept)
    total = sum(entropy_bits(torch.bincount(codes[slot.start : slot.stop])) * slot.size / 8 for slot in slots)
    packed = Packed.of(made, CODED_PRECISION)
    size = len(packed.parts["posterior.index"])
    tables = sum(slot.shape[0] + math.prod(slot.shape[1:]) for slot in slots) / 2  # half a byte a row and column
    assert size < 1.01 * total + tables
    assert packed.size - sum(map(len, packed.parts.values())) < 2048
