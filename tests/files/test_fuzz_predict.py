"""A little of benchmarks/fuzz_predict.py: spoiled networks of every storage are refused or answer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import pocketbayes as pb

fuzz_predict = __import__("fuzz_predict")


@pytest.mark.parametrize("storage", fuzz_predict.METHODS)
def test_load_refuses_a_damaged_network_or_predict_works(storage: str, tmp_path: Path) -> None:
    net, precision = fuzz_predict.make(storage)
    path, x = tmp_path / "net.pocket", torch.linspace(-1, 1, 24).view(2, 12)
    pb.save(net, path, precision=precision)
    whole = path.read_bytes()
    assert fuzz_predict.outcome(path, x) == "answered"
    described = fuzz_predict.describe_tensors(net)
    found = set()
    for number in range(40):
        path.write_bytes(fuzz_predict.mutate(described, whole, random.Random(f"1 {storage} {number}")))
        found.add(fuzz_predict.outcome(path, x))
    assert found <= {"answered", "refused"}
