"""Codes packed for graphs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import pocketbayes as pb
from pocketbayes.network import Network
from pocketbayes.plane.trellis import restore_sides
from pocketbayes.posteriors.packed_codes import PackedCodes, PackedPaths, packed_bits
from pocketbayes.ship.compression.coding import CODED_PRECISION, Recipe, code


@pytest.mark.parametrize("widths", [(8,), (4, 8), (2, 4, 8), (1, 2, 8), (2, 8), (1, 1, 8)])
def test_onnx_packed_codes_return_the_codes(widths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    index = (8 + 3 * torch.randn(1001)).round().clamp(0, 20).to(torch.uint8)
    packed = PackedCodes(index, widths)
    assert torch.equal(packed(), index.int())
    bits = packed_bits(torch.bincount(index.long()), widths)
    held = sum(8 * buffer.numel() for name, buffer in packed.named_buffers() if name.endswith("tokens"))
    assert bits <= held <= bits + 8 * len(widths)


@pytest.mark.parametrize("values", [torch.zeros(5), torch.arange(256), torch.tensor([3.0])])
def test_onnx_packs_extreme_codes(values: torch.Tensor) -> None:
    index = values.to(torch.uint8)
    for widths in ((8,), (1, 8), (1, 2, 8)):
        assert torch.equal(PackedCodes(index, widths)(), index.int())


def test_onnx_packed_paths_return_the_sides() -> None:
    shapes = [(8, 3, 3, 3), (5,), (0, 4), (6, 1), (4, 10)]
    codes = np.random.default_rng(0).integers(0, 7, sum(math.prod(shape) for shape in shapes))
    wanted = restore_sides(codes, 7, shapes)
    found = PackedPaths(torch.from_numpy(codes), 7, shapes)()
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_onnx_graph_of_a_coded_network_is_small_and_agrees(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    net = pb.bayesianize(pb.models.build("resnet20"), "map")
    net.likelihood = pb.Categorical()  # type: ignore[union-attr]
    coded = code(net, Recipe(0.2)).net
    assert isinstance(coded, Network)
    x = torch.randn(3, 3, 32, 32)
    size = pb.export_onnx(coded, tmp_path / "net.onnx", mode="mean", example=x[:2])
    file = pb.save(coded, tmp_path / "net.pocket", precision=CODED_PRECISION)
    assert size == (tmp_path / "net.onnx").stat().st_size <= 1.3 * file + 40_000
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (probs,) = session.run(["probs"], {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(probs), pb.predict(coded, x, samples=1).probs, atol=1e-5, rtol=1e-4)
