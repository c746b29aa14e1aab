"""The command line on sparse networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_cli import call, call_json

import pocketbayes as pb
from cases import tiny_data


def sparse_run(folder: Path, method: pb.Method) -> pb.Network:
    model = pb.models.build("lenet300")
    x = torch.randn(8, 1, 28, 28)
    net = pb.fit(method, model, (x, tiny_data(8)[1]), epochs=2, batch_size=4, out=folder, progress=False)
    assert isinstance(net, pb.Network)
    return net


def test_inspect_shows_densities_swaps_and_kernels(tmp_path: Path) -> None:
    method = pb.SSVI(density=0.05, distribution="erdos-renyi", swap_every=1, swap_until=1.0, mean_init="model")
    net = sparse_run(tmp_path, method)
    found = call_json("inspect", tmp_path)
    (network,) = found["networks"]
    assert network["swapped"] == int(net.posterior.swapped) > 0
    assert {weight["name"]: weight["density"] for weight in network["weights"]} == net.posterior.densities()
    assert found["last_epoch"]["csr_products"] == net.posterior.fast_slots() == ["linear1.weight"]
    shown = call("inspect", tmp_path).stdout
    assert "CSR products for linear1.weight" in shown
    assert f"{int(net.posterior.swapped):,}" in shown
    assert f"{net.posterior.densities()['linear1.weight']:.4f}" in shown


def test_inspect_shows_densities_of_point_values(tmp_path: Path) -> None:
    sparse_run(tmp_path, pb.RigL(density=0.1, distribution="uniform"))
    (network,) = call_json("inspect", tmp_path)["networks"]
    assert network["weights"][0]["density"] == pytest.approx(0.1, abs=1e-3)
