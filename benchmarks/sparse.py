"""Measure what sparsity saves against dense mean-field VI: bytes in training and on disk, arithmetic, and time.

python benchmarks/sparse.py [--rounds 21] [--threads 1]

Times are interleaved medians of CPU seconds, reported as dense time divided by sparse time. `kernels` justifies the
rule of `pocketbayes.posteriors.sparse` for CSR products; `convolutions` shows why convolutions do not use them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pocketbayes as pb
from measure import interleaved, write_result
from networks import classifier
from pocketbayes.posteriors.csr import Pattern, SparseMatrix
from steps import EXAMPLES, Action, step_of, without_gradients
from training_cost import training_bytes, training_flops

SHAPES = {"lenet300": (1, 28, 28), "mlp 1200-400": (1, 28, 28), "resnet-small": (3, 32, 32)}
MATRICES = ((100, 300), (256, 256), (300, 784), (1024, 1024))
CONVOLUTIONS = ((32, 32, 3, 16), (64, 64, 3, 8), (512, 512, 3, 4), (512, 256, 1, 8))
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2)
BATCH = 128

timed = partial(interleaved, clock=time.process_time)


def networks(model: str, density: float) -> dict[str, pb.Network]:
    """Return dense VI and SSVI with both kernels, all with local noise."""
    torch.manual_seed(0)
    hidden = [int(width) for width in model.removeprefix("mlp ").split("-")] if model.startswith("mlp ") else []
    sides = {"in_features": 784, "out_features": 10, "hidden": hidden}
    plain = pb.models.build("mlp", **sides) if hidden else pb.models.build(model)
    methods = {
        "dense VI": pb.MeanFieldVI(propagation="local"),
        **{f"SSVI, {kernel}": pb.SSVI(density=density, kernel=kernel) for kernel in ("auto", "dense")},
    }
    return {name: classifier(plain, method) for name, method in methods.items()}


def training_step(net: pb.Network, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Action:
    """Return an optimiser step on NLL + KL / N; predictions may run in between."""
    return step_of(optimizer, lambda: F.cross_entropy(net.train()(x), y) + net.kl() / EXAMPLES)


def sizes(model: str, density: float) -> dict[str, Any]:
    """Return live bytes after a step, file bytes and arithmetic, relative to dense VI."""
    nets = networks(model, density)
    dense, sparse = nets["dense VI"], nets["SSVI, auto"]
    x, y = torch.randn(8, *SHAPES[model]), torch.arange(8)
    result: dict[str, Any] = {"density": density}
    for kind in ("sgd", "adamw"):
        used = {}
        for name, net in (("dense", dense), ("sparse", sparse)):
            optimizer = pb.Training(optimizer=kind).make_optimizer(net)
            training_step(net, optimizer, x, y)()
            used[name] = training_bytes(net, optimizer)
        result[f"training bytes, {kind}"] = {
            **{name: bytes_["total"] for name, bytes_ in used.items()},
            "ratio": used["sparse"]["total"] / used["dense"]["total"],
        }
    with tempfile.TemporaryDirectory() as folder:
        files = {name: pb.save(net, Path(folder) / "x.pocket") for name, net in (("dense", dense), ("sparse", sparse))}
    result["file bytes"] = {**files, "ratio": files["sparse"] / files["dense"]}
    counts = training_flops(sparse, x)
    result["training FLOPs per example, present weights (paper's count)"] = counts["present"]
    result["training FLOPs per example, executed"] = counts["executed"]
    result["training FLOPs per example, dense VI"] = counts["dense"]
    return result


def times(model: str, density: float, rounds: int) -> dict[str, Any]:
    """Return dense VI's time divided by each network's, for a training step and a prediction of 30 samples."""
    nets = networks(model, density)
    x, y = torch.randn(BATCH, *SHAPES[model]), torch.arange(BATCH) % 10
    optimizers = {name: pb.Training(optimizer="sgd").make_optimizer(net) for name, net in nets.items()}
    steps = timed({name: training_step(net, optimizers[name], x, y) for name, net in nets.items()}, rounds)
    predictions = timed({name: prediction(net, x) for name, net in nets.items()}, max(rounds // 3, 3))
    return {
        "density": density,
        "batch": BATCH,
        "kernels": pb.census(nets["SSVI, auto"]).notes[0],
        "training step, times faster": {name: steps["dense VI"] / value for name, value in steps.items()},
        "30-sample prediction, times faster": {
            name: predictions["dense VI"] / value for name, value in predictions.items()
        },
    }


def prediction(net: pb.Network, x: Tensor, samples: int = 30, how: str | None = None) -> Action:
    return lambda: pb.predict(net.eval(), x, samples, how)


def kernels(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the time of scattering and a dense product divided by a CSR product: [forward, forward and backward]."""
    result: dict[str, dict[str, list[float]]] = {}
    for rows, columns in MATRICES:
        row = result.setdefault(f"{rows}x{columns}", {})
        for density in DENSITIES:
            index = torch.randperm(rows * columns)[: round(density * rows * columns)].sort().values
            values = torch.randn(len(index), requires_grad=True)
            x, bias = torch.randn(BATCH, columns, requires_grad=True), torch.randn(rows)
            pattern = Pattern.of(index, (rows, columns))

            def dense(index=index, values=values, x=x, bias=bias, shape=(rows, columns)) -> Tensor:  # type: ignore[no-untyped-def]
                weight = values.new_zeros(shape[0] * shape[1]).index_copy_(0, index, values)
                return F.linear(x, weight.view(shape), bias)

            def sparse(pattern=pattern, values=values, x=x, bias=bias) -> Tensor:  # type: ignore[no-untyped-def]
                return F.linear(x, SparseMatrix(pattern, values), bias)

            forward = timed({"dense": without_gradients(dense), "csr": without_gradients(sparse)}, rounds)
            both = timed({"dense": with_backward(dense), "csr": with_backward(sparse)}, rounds)
            row[str(density)] = [part["dense"] / part["csr"] for part in (forward, both)]
    return result


def with_backward(action: Callable[[], Tensor]) -> Action:
    """Return the action with its backward pass."""
    return lambda: action().sum().backward()


def convolutions(rounds: int) -> dict[str, dict[str, float]]:
    """Return the time of a dense convolution divided by a CSR product of its unfolded input, forward."""
    result: dict[str, dict[str, float]] = {}
    for out, channels, kernel, side in CONVOLUTIONS:
        row = result.setdefault(f"{channels}->{out}, {kernel}x{kernel}, {side}x{side}", {})
        x = torch.randn(BATCH // 2, channels, side, side)
        for density in DENSITIES[:3]:
            columns = channels * kernel * kernel
            index = torch.randperm(out * columns)[: round(density * out * columns)].sort().values
            values = torch.randn(len(index))
            weight = torch.zeros(out * columns).index_copy_(0, index, values).view(out, channels, kernel, kernel)
            matrix = Pattern.of(index, (out, columns)).matrix(values)

            def dense(x=x, weight=weight, kernel=kernel) -> Tensor:  # type: ignore[no-untyped-def]
                return F.conv2d(x, weight, padding=kernel // 2)

            def sparse(x=x, matrix=matrix, kernel=kernel, columns=columns) -> Tensor:  # type: ignore[no-untyped-def]
                patches = F.unfold(x, kernel, padding=kernel // 2).transpose(0, 1).reshape(columns, -1)
                product = matrix @ patches
                return product.view(len(product), len(x), *x.shape[2:]).transpose(0, 1).contiguous()

            actions = {"dense": without_gradients(dense), "csr": without_gradients(sparse)}
            seconds = timed(actions, max(rounds // 3, 3))
            row[str(density)] = seconds["dense"] / seconds["csr"]
    return result


def rounded(value: Any) -> Any:
    """Round all floats to three digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="sparse", help="of the result file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = {
        "sizes": {model: sizes(model, 0.05) for model in SHAPES},
        "times": {
            "lenet300": times("lenet300", 0.02, arguments.rounds),
            "lenet300, density 0.05": times("lenet300", 0.05, arguments.rounds),
            **{
                f"mlp 1200-400, density {density}": times("mlp 1200-400", density, arguments.rounds)
                for density in (0.01, 0.05, 0.1)
            },
            "resnet-small": times("resnet-small", 0.05, max(arguments.rounds // 3, 3)),
        },
        "kernels, dense over CSR time [forward, forward and backward]": kernels(arguments.rounds),
        "convolutions, dense over CSR time": convolutions(arguments.rounds),
    }
    print(write_result(arguments.name, rounded(result)))


if __name__ == "__main__":
    main()
