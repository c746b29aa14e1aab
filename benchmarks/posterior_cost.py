"""What a posterior costs: IVON's training step, stds from curvature without training, draws with stale batch norm.

    python benchmarks/posterior_cost.py [ivon] [curvature] [draws] --weights resnet20-12fca82f.th

- ivon: CPU seconds of a training step of 128 examples over those of a deterministic step by SGD with momentum, all
  interleaved in one process; of the package ivon-opt too, where it is installed.
- curvature: CPU seconds and peak memory of `pb.bayesianize(model, "bbb", data=...)`, for the given ResNet-20 and for
  torchvision's EfficientNet-B0 (5.3 million weights, 1000 classes, random weights, 64-pixel images).
- draws: that ResNet-20 with stds from curvature, answers of 8 draws with the batch-norm statistics in store and with
  those of `pb.fix_draws`, on 600 test images.

Rows are kept in results/posterior-cost.json; those that are there are not run again.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import pocketbayes as pb
from measure import Rows, forget_peak, interleaved, memory, ratios
from networks import pretrained_resnet20
from steps import EXAMPLES, Action, deterministic_step, step_of

STEPS: dict[str, tuple[tuple[int, ...], int]] = {
    "lenet5": ((128, 1, 28, 28), 40),
    "lenet300": ((128, 784), 60),
    "resnet20": ((128, 3, 32, 32), 5),
}
"""Shape of a batch, and rounds."""


def ivon_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Action:
    method = pb.IVON()
    net = method.init(model).train()
    optimizer = method.make_optimizer(net, 1e-3, 1000, EXAMPLES)
    return step_of(optimizer, lambda: F.cross_entropy(net(x), y))


def package_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Action | None:
    try:
        from peer_models import ivon_step as step

        return step(model, x, y)
    except ImportError:
        return None


def steps(rows: Rows, _: Path) -> None:
    for name, (shape, rounds) in STEPS.items():
        if f"ivon step, {name}" in rows:
            continue
        torch.manual_seed(0)
        model, x, y = pb.models.build(name), torch.randn(shape), torch.randint(10, (shape[0],))
        actions = {
            "deterministic": deterministic_step(copy.deepcopy(model).train(), x, y),
            "pocketbayes": ivon_step(copy.deepcopy(model), x, y),
            "ivon-opt": package_step(copy.deepcopy(model), x, y),
        }
        known = {key: action for key, action in actions.items() if action is not None}
        seconds = interleaved(known, rounds, 2, time.process_time)
        rows.keep(f"ivon step, {name}", {"ratio": ratios(seconds, "deterministic"), "cpu_seconds": seconds})


def resnet20(weights: Path) -> tuple[nn.Module, Any]:
    data = pb.data.load("cifar10", split="train", subset=2000, mean="imagenet")
    return pretrained_resnet20(weights), data


def efficientnet(_: Path) -> tuple[nn.Module, Any]:
    from torchvision.models import efficientnet_b0

    torch.manual_seed(0)
    return efficientnet_b0(weights=None), (torch.randn(256, 3, 64, 64), torch.randint(1000, (256,)))


def curvature(rows: Rows, weights: Path) -> None:
    cases: dict[str, Callable[[Path], tuple[nn.Module, Any]]] = {"resnet20": resnet20, "efficientnet_b0": efficientnet}
    for name, make in cases.items():
        key = f"curvature, {name}"
        if key in rows:
            continue
        model, data = make(weights)
        forget_peak()
        before, begun = memory(), time.process_time()
        net = pb.bayesianize(model.eval(), "bbb", data=data, examples=50_000.0)
        row = {"cpu_seconds": time.process_time() - begun, "extra_peak_bytes": memory("VmHWM") - before}
        rows.keep(key, {**row, "weights": net.layout.size, "snr": pb.health(net).snr})


def draws(rows: Rows, weights: Path) -> None:
    model, data = resnet20(weights)
    test = pb.data.load("cifar10", split="test", subset=600, mean="imagenet")
    few = data.take(torch.arange(256))
    for scale in (1.0, 0.03):
        net = pb.bayesianize(model.eval(), "bbb", data=few, examples=50_000.0, delta=scale**-2)
        kinds = {"in store": lambda net=net: net, "of the draw": lambda net=net: pb.fix_draws(net, few, samples=8)}
        for kind, make in kinds.items():
            if (key := f"draws, prior std {scale}, statistics {kind}") not in rows:
                found = pb.evaluate(make(), test, samples=8, progress=None)
                rows.keep(key, {name: found[name] for name in ("accuracy", "nll", "calibrated_nll", "epistemic_share")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["ivon", "curvature", "draws"])
    parser.add_argument("--weights", type=Path, default=Path("resnet20-12fca82f.th"), help="of a trained ResNet-20")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows("posterior-cost")
    for part in arguments.parts:
        {"ivon": steps, "curvature": curvature, "draws": draws}[part](rows, arguments.weights)


if __name__ == "__main__":
    main()
