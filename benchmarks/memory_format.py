"""Measure the memory format `channels_last`: relative time of one pass and of a training step.

python benchmarks/memory_format.py [--rounds 15]

CPU seconds of one thread, interleaved medians. Writes results/memory-format.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

import pocketbayes as pb
from measure import Rows, interleaved
from steps import Action, deterministic_step, our_step, without_gradients

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda: pb.models.build("lenet5"), (64, 1, 28, 28)),
    "resnet-small": (lambda: pb.models.build("resnet-small"), (64, 3, 32, 32)),
    "resnet20": (lambda: pb.models.build("resnet20"), (32, 3, 32, 32)),
    "resnet18": (lambda: pb.models.build("resnet18", classes=10), (8, 3, 32, 32)),
    "torchvision:mobilenet_v2": (lambda: pb.models.build("torchvision:mobilenet_v2", classes=10), (8, 3, 64, 64)),
    "timm:efficientnet_b0": (lambda: pb.models.build("timm:efficientnet_b0", classes=10), (8, 3, 64, 64)),
    "timm:convnext_atto": (lambda: pb.models.build("timm:convnext_atto", classes=10), (8, 3, 64, 64)),
}
WAYS = ("deterministic", "sample", "local")


def actions(model: nn.Module, way: str, x: torch.Tensor, step: bool) -> Action:
    y = torch.arange(len(x)) % 10
    if way == "deterministic":
        return deterministic_step(model.train(), x, y) if step else without_gradients(lambda: model.eval()(x))
    net = pb.bayesianize(model, pb.MeanFieldVI(propagation=way))  # type: ignore[arg-type]
    return our_step(net.train(), x, y) if step else without_gradients(lambda: net.eval()(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    rows = Rows("memory-format", {"rounds": rounds})
    for name, (build, shape) in MODELS.items():
        row: dict[str, object] = {"batch": shape[0], "size": shape[-1]}
        for way in WAYS:
            for step in (False, True):
                torch.manual_seed(0)
                x = torch.randn(shape)
                formats = {"usual": x, "channels_last": x.to(memory_format=torch.channels_last)}
                timed = {key: actions(build(), way, images, step) for key, images in formats.items()}
                seconds = interleaved(timed, rounds, clock=time.process_time)
                row[f"{way}, {'training step' if step else 'pass'}"] = seconds["channels_last"] / seconds["usual"]
        rows.keep(name, row)


if __name__ == "__main__":
    main()
