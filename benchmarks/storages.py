"""One small network per storage with values that are exact in binary, so that they are equal on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pocketbayes as pb
from pocketbayes import posteriors
from pocketbayes.plane.trellis import restore_sides
from pocketbayes.posteriors.layout import Layout

WEIGHTS = 35
CHANNELS = 8
FACTORS = 17


def values(count: int, step: int = 37) -> Tensor:
    """Return multiples of 1/64 in [-1/2, 1/2)."""
    return ((torch.arange(count) * step) % 64 - 32) / 64


def raw(count: int) -> Tensor:
    """Return inputs of softplus for stds: multiples of 1/8 in (-5, 0)."""
    return -((torch.arange(count) * 11) % 32 + 4) / 8


def tables() -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
    """Return the tensors and the config of each storage."""
    mean, rho = values(WEIGHTS), raw(WEIGHTS)
    positions = torch.arange(1, WEIGHTS, 3)
    few = len(positions)
    entries = torch.arange(WEIGHTS) * 5 % 6
    entries[[3, 17]] = torch.tensor([6, 7])
    entries[[9, 30]] = torch.tensor([8, 9])
    return {
        "point": ({"mean": mean}, {}),
        "mean-field": ({"mean": mean, "rho": rho}, {}),
        "row-stds": ({"mean": mean, "rho": raw(CHANNELS)}, {}),
        "rank-1": ({"mean": mean, "factor": 1 + values(FACTORS), "rho": raw(FACTORS)}, {}),
        "partial": ({"mean": mean, "rho": raw(few), "index": positions}, {}),
        "sparse": (
            {
                "mean": values(few),
                "rho": raw(few),
                "index": positions.to(torch.int32),
                "swapped": torch.tensor(5),
            },
            {"kernel": "auto"},
        ),
        "shared": (
            {
                "centre_mean": values(6),
                "raw_a": raw(6),
                "centre_std": values(6).abs(),
                "off_diagonal": values(6, 11) / 8,
                "raw_c": raw(6),
                "outlier_mean": torch.tensor([1.5, -1.25]),
                "outlier_rho": torch.tensor([-2.0, -1.5]),
                "index": entries.to(torch.int32),
                "blend_index": torch.tensor([[0, 3], [2, 5]]),
                "blend_alpha": torch.tensor([[0.25, 0.75], [0.5, 0.5]]),
            },
            {"draw": "shared-noise", "blend": "convex"},
        ),
        "dropped": ({"mean": mean}, {"rate": 0.25, "units": [[0, 0], [1, 5]]}),
        "low-rank": (
            {
                "mean": mean,
                "std": values(few).abs(),
                "factor": values(2 * few, 13).view(few, 2) / 4,
                "index": positions,
            },
            {},
        ),
        "kronecker": (
            {
                "mean": mean,
                "std": values(15).abs() + 0.125,
                "rows": torch.eye(3).flatten(),
                "columns": torch.eye(5).flatten(),
            },
            {"slots": [1]},
        ),
        "trajectory": (
            {
                "mean": mean,
                "count": torch.tensor(3),
                "average": values(WEIGHTS, 11),
                "squares": values(WEIGHTS).abs(),
                "deviations": values(2 * WEIGHTS, 13).view(2, WEIGHTS),
                "points": values(CHANNELS),
            },
            {},
        ),
        "quantized": (
            {
                "means": ((torch.arange(WEIGHTS) * 37) % 255 - 127).to(torch.int8),
                "scale": torch.arange(1, CHANNELS + 1) / 256,
                "stds": ((torch.arange(18) * 73) % 256).to(torch.uint8),
                "low": torch.arange(1, CHANNELS + 1) / 64,
                "step": torch.arange(1, CHANNELS + 1) / 1024,
            },
            {"sigma_bits": 4},
        ),
        "coded": (
            {
                "index": ((torch.arange(WEIGHTS) * 5) % 6).to(torch.uint8),
                "centres": values(6).sort().values,
                "scale": torch.arange(1, CHANNELS + 1) / 8,
                "std": values(6).abs() / 16,
            },
            {"units": "filter", "std_units": "code"},
        ),
    }  # fmt: skip


def network(name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> pb.Network:
    """Return a network of 4-5-3 units with this posterior."""
    model = pb.models.build("mlp", in_features=4, hidden=[5], out_features=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(values(parameter.numel()).view_as(parameter))
    posterior = posteriors.restore(name, Layout.of(model), tensors, config)
    return pb.Network(model, posterior, likelihood=pb.Categorical()).eval()


def trellis() -> pb.Network:
    """Return a network whose codes lie on a trellis."""
    shapes, codes, side = [(5, 4), (3, 5)], np.arange(WEIGHTS) * 5 % 6, values(6).sort().values
    index = torch.from_numpy(restore_sides(codes, 6, shapes)).to(torch.uint8)
    tensors = {"index": index, "centres": torch.cat([side, -side]), "scale": torch.ones(1)}
    return network("coded", tensors, {"units": "network", "std_units": "none"})


def networks() -> dict[str, pb.Network | pb.Mixture]:
    """Return a network for every storage, one with codes on a trellis, and a mixture of two."""
    each: dict[str, pb.Network | pb.Mixture] = {name: network(name, *parts) for name, parts in tables().items()}
    pair = [network(name, *tables()[name]) for name in ("mean-field", "point")]
    return {**each, "trellis": trellis(), "mixture": pb.Mixture(pair)}
