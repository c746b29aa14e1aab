"""Measure pocket files: sizes against references, and the time to encode and load.

python benchmarks/pocket.py [--rounds 5]

Writes results/pocket.json. Sizes are the same on any machine; times need an idle one. Networks are not trained, but
noise is added to values that training would vary, because constants would make the files unrealistically small.
"""

from __future__ import annotations

import argparse
import copy
import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pocketbayes as pb
from measure import interleaved, write_result
from pocketbayes.files import codec, pocket
from pocketbayes.files.packing import Precision
from pocketbayes.methods.int8 import quantized


def layers_of(model: str) -> list[int]:
    return [slot.size for slot in pb.Layout.of(pb.models.build(model)).slots]


def indices(lengths: list[int], gaussians: int) -> np.ndarray:
    """Return indices of Gaussians with one distribution per layer, like those of a network."""
    rng = np.random.default_rng(0)
    shares = [rng.dirichlet(np.full(gaussians, 2.0)) for _ in lengths]
    return np.concatenate([rng.choice(gaussians, n, p=p) for n, p in zip(lengths, shares)]).astype(np.int64)


def entropy_bytes(values: np.ndarray, lengths: list[int]) -> float:
    total = 0.0
    for part in np.split(values, np.cumsum(lengths)[:-1]):
        share = np.bincount(part)[np.bincount(part) > 0] / len(part)
        total += float(-(share * np.log2(share)).sum() * len(part) / 8)
    return total


def coding(rounds: int) -> dict[str, Any]:
    """Measure bytes against the entropy, and the time for the 11.2 million indices of a ResNet-18."""
    rows: dict[str, Any] = {}
    for model, gaussians in (("resnet20", 16), ("resnet20", 64), ("resnet18", 64), ("resnet18", 2000)):
        lengths = layers_of(model)
        values = indices(lengths, gaussians)
        data = codec.pack_ints(values, lengths)
        ideal = entropy_bytes(values, lengths)
        row = {
            "indices": len(values),
            "bytes": len(data),
            "entropy bytes": round(ideal),
            "table bytes": gaussians * len(lengths),
            "over entropy": len(data) / ideal - 1,
            "over entropy and tables": len(data) / (ideal + gaussians * len(lengths)) - 1,
        }
        if model == "resnet18" and rounds:
            actions = {
                "encode": lambda v=values, n=lengths: codec.pack_ints(v, n),
                "decode": lambda d=data, n=lengths: codec.unpack_ints(d, sum(n), n),
            }
            row["seconds"] = interleaved(actions, rounds)
        rows[f"{model}, {gaussians} Gaussians"] = row
    return rows


def shared_resnet18(gaussians: int) -> pb.Network:
    """Return a ResNet-18 with shared weights, built without training; its values do not affect the loading time."""
    torch.manual_seed(0)
    model = pb.models.build("resnet18", classes=10)
    layout = pb.Layout.of(model)
    outliers = layout.size // 200
    index = torch.from_numpy(indices([slot.size for slot in layout.slots], gaussians))
    index[torch.randperm(layout.size)[:outliers].sort().values] = gaussians + torch.arange(outliers)
    posterior = pb.posteriors.Shared(
        layout, centres=torch.randn(gaussians, 2).abs() / 10, factors=torch.rand(gaussians, 3) / 100 + 1e-4,
        index=index, outlier_mean=torch.randn(outliers), outlier_std=torch.rand(outliers) / 10 + 1e-3,
        blend_index=torch.zeros(0, 1, dtype=torch.int64), blend_alpha=torch.zeros(0, 1),
    )  # fmt: skip
    return pb.Network(model, posterior)


def loading(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the time to load a ResNet-18, against `torch.load` of its float32 weights."""
    nets = {
        "shared, 64 Gaussians, lossless": (shared_resnet18(64), "lossless"),
        "shared, 2000 Gaussians, int8": (shared_resnet18(2000), "int8"),
        "deterministic, lossless": (pb.bayesianize(pb.models.build("resnet18", classes=10), "map"), "lossless"),
        "sparse, density 0.05, lossless": (
            pb.bayesianize(pb.models.build("resnet18", classes=10), pb.SSVI(density=0.05)),
            "lossless",
        ),
    }
    actions: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for number, (name, (net, precision)) in enumerate(nets.items()):
        path = folder / f"{number}.pocket"
        rows[name] = {"bytes": pb.save(net, path, precision=precision)}
        actions[name] = lambda path=path: pb.load(path)
    torch.save(pb.models.build("resnet18", classes=10).state_dict(), folder / "weights.pt")
    actions["torch.load"] = lambda: torch.load(folder / "weights.pt")
    rows["torch.load"] = {"bytes": (folder / "weights.pt").stat().st_size}
    for name, seconds in (interleaved(actions, rounds) if rounds else {}).items():
        rows[name]["seconds"] = seconds
    return rows


@torch.no_grad()
def spread(net: pb.Network) -> pb.Network:
    """Add noise to stds and normalisation, so that they vary as after training."""
    for name, tensor in net.posterior.named_parameters():
        if name in net.posterior.spreads:
            tensor += 0.3 * torch.randn_like(tensor)
    for tensor in net.model.state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.1 * torch.randn_like(tensor)
    return net


def sizes(folder: Path) -> dict[str, Any]:
    """Measure files of every storage, the deterministic and the dense mean-field network."""
    torch.manual_seed(0)
    model = pb.models.build("resnet20")
    state = io.BytesIO()
    torch.save(model.state_dict(), state)
    rows: dict[str, Any] = {"torch.save of the deterministic network": {"bytes": state.tell()}}
    methods = {
        "map": pb.Deterministic(),
        "mean-field": pb.MeanFieldVI(prior="pretrained"),
        "SSVI, density 0.05": pb.SSVI(density=0.05),
        "PBN, 1 %": pb.PBN(rate=0.01, pretrain_epochs=0),
        "2DGBNN, 64 Gaussians": pb.WeightSharing(k=64, tau_w=0.3, ellipse=None),
    }
    nets = {name: spread(pb.bayesianize(model, method)) for name, method in methods.items()}
    nets["int8 BNN"] = quantized(copy.deepcopy(nets["mean-field"]))
    for name, net in nets.items():
        file = folder / "size.pocket"
        rows[name] = {
            "bytes": {level: pb.save(net, file, precision=level) for level in ("lossless", "bfloat16", "int8")},
            "values": pb.census(net).values,
            "parts": pocket.sizes(file),
        }
    field, point = rows["mean-field"]["bytes"]["lossless"], 4 * sum(t.numel() for t in model.state_dict().values())
    rows["bars"] = {
        "SSVI over dense mean-field, both lossless": rows["SSVI, density 0.05"]["bytes"]["lossless"] / field,
        "PBN lossless over float32 weights": rows["PBN, 1 %"]["bytes"]["lossless"] / point,
        "PBN lossless over the deterministic pocket file": rows["PBN, 1 %"]["bytes"]["lossless"]
        / rows["map"]["bytes"]["lossless"],
        "PBN int8 over float32 weights": rows["PBN, 1 %"]["bytes"]["int8"] / point,
        "PBN int8 over the deterministic pocket file": rows["PBN, 1 %"]["bytes"]["int8"]
        / rows["map"]["bytes"]["lossless"],
    }
    return rows


def coarseness(folder: Path) -> dict[str, Any]:
    """Measure the NLL on the digits' test data with means or stds in ever fewer steps."""
    train, test = (pb.data.load("digits", split, val_fraction=0.0) for split in ("train", "test"))
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=64, out_features=10, hidden=[64])
    method = pb.MeanFieldVI(propagation="local", prior_std=1.0)
    net = pb.fit(method, model, train, epochs=60, batch_size=64, lr=3e-3, seed=0, progress=False)
    rows: dict[str, Any] = {}
    levels = ("lossless", "int8", "int6", "int5", "int4", "int3", "int2")
    for part in ("means", "stds"):
        for level in levels:
            path = folder / "coarse.pocket"
            size = pb.save(net, path, precision=Precision(**{part: level}))
            measures = pb.evaluate(pb.load(path), test, samples=100)
            rows[f"{part} {level}"] = {"bytes": size, "nll": measures["nll"], "accuracy": measures["accuracy"]}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each timing; 0 for sizes alone, on a busy machine")
    arguments = parser.parse_args()
    start = time.perf_counter()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, action in {
            "sizes": lambda: sizes(Path(folder)),
            "coarseness": lambda: coarseness(Path(folder)),
            "coding": lambda: coding(arguments.rounds),
            "loading": lambda: loading(Path(folder), arguments.rounds),
        }.items():
            result[name] = action()
            print(f"{name}: {time.perf_counter() - start:.0f} s", result[name], flush=True)
    write_result("pocket", result)


if __name__ == "__main__":
    main()
