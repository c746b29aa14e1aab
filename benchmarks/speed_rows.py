"""The rows of speed.py: what is timed, the peers, and the goal."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pocketbayes as pb
from networks import classifier
from peer_models import (
    bayesian_torch,
    bayesian_torch_summed_step,
    ivon_passes,
    ivon_step,
    our_training_step,
)
from plane import cloud
from steps import Action, deterministic_step, our_step, thirty_passes, without_gradients

OURS, PLAIN = "pocketbayes", "deterministic"
Ways = Mapping[str, Callable[[], Action]]


@dataclass(frozen=True)
class Row:
    """A cost to measure.

    Attributes:
        what: The title.
        goal: The upper limit for ours, relative to the base or in seconds.
        ways: Builders of the timed actions, by name.
        base: The reference way; None to report seconds.
        rounds: The number of timings.
        memory: The reference way for peak memory; None to skip memory.
        memory_of_run_alone: Exclude memory allocated before the first run.
    """

    what: str
    goal: float
    ways: Callable[[], Ways]
    base: str | None = PLAIN
    rounds: int = 15
    memory: str | None = None
    memory_of_run_alone: bool = False
    ours: str = OURS


def inputs(batch: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, *shape, generator=generator), torch.arange(batch) % 10


def plain_pass(model: nn.Module, x: Tensor) -> Action:
    model = copy.deepcopy(model).eval()
    return without_gradients(lambda: model(x))


def prediction(net: pb.Network, x: Tensor, how: str, samples: int = 30) -> Action:
    return lambda: pb.predict(net.eval(), x, samples, how)


# -- training steps ---------------------------------------------------------------------------------------------------


def training_step(name: str, batch: int, *shape: int, **settings: Any) -> Callable[[], Ways]:
    def ways() -> Ways:
        model = pb.models.build(name, **settings)
        x, y = inputs(batch, *shape)
        return {
            PLAIN: lambda: deterministic_step(copy.deepcopy(model).train(), x, y),
            OURS: lambda: our_training_step(pb.MeanFieldVI())(model, x, y),
            "ivon": lambda: ivon_step(copy.deepcopy(model).train(), x, y),
            "bayesian-torch": lambda: bayesian_torch_summed_step(copy.deepcopy(model).train(), x, y),
        }

    return ways


def sparse_step() -> Ways:
    model = pb.models.build("mlp", in_features=784, out_features=10, hidden=(1024, 1024))
    x, y = inputs(128, 784)
    methods = {"dense VI": pb.MeanFieldVI(propagation="local"), OURS: pb.SSVI(density=0.05)}
    built: Ways = {
        name: lambda method=method: our_step(classifier(copy.deepcopy(model), method).train(), x, y)
        for name, method in methods.items()
    }
    return {**built, PLAIN: lambda: deterministic_step(copy.deepcopy(model).train(), x, y)}


# -- predictions ------------------------------------------------------------------------------------------------------


def thirty_samples(name: str, batch: int, *shape: int) -> Callable[[], Ways]:
    def ways() -> Ways:
        model = pb.models.build(name)
        x, _ = inputs(batch, *shape)
        return {
            PLAIN: lambda: plain_pass(model, x),
            OURS: lambda: prediction(classifier(copy.deepcopy(model), pb.MeanFieldVI()), x, "sample"),
            "ivon": lambda: ivon_passes(copy.deepcopy(model), x),
            "bayesian-torch": lambda: thirty_passes(bayesian_torch(model).eval(), x),
        }

    return ways


def unsampled(name: str, method: pb.Method, how: str, batch: int, *shape: int) -> Callable[[], Ways]:
    def ways() -> Ways:
        model = pb.models.build(name)
        x, _ = inputs(batch, *shape)
        net = classifier(copy.deepcopy(model), method)
        return {
            PLAIN: lambda: plain_pass(model, x),
            OURS: lambda: prediction(net, x, how),
            "its own 30 samples": lambda: prediction(net, x, "sample"),
        }

    return ways


# -- files, Laplace, export, stage 2 ----------------------------------------------------------------------------------


def load(name: str) -> Callable[[], Ways]:
    def ways() -> Ways:
        folder = Path(tempfile.mkdtemp())
        model = pb.models.build(name)
        torch.save(model.state_dict(), folder / "model.pt")
        pb.save(classifier(copy.deepcopy(model), pb.MeanFieldVI(std_init="xavier")), folder / "model.pocket")
        return {
            OURS: lambda: lambda: pb.load(folder / "model.pocket"),
            "torch.load": lambda: lambda: torch.load(folder / "model.pt", weights_only=True),
        }

    return ways


class Head(nn.Module):
    """A small trunk and a head of many classes, so that the fit dominates the time."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(784, features), nn.ReLU())
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.trunk(x))
        return output


def laplace_fit() -> Ways:
    """Return only our fit: a peer with 1000 classes did not finish within minutes."""
    model = Head(512, 1000)
    x, _ = inputs(300, 1, 28, 28)
    y = torch.arange(300) % 1000
    start = classifier(copy.deepcopy(model), pb.Deterministic())
    method = pb.Laplace(hessian="kron", prior_precision=1.0)
    return {OURS: lambda: lambda: pb.fit(method, start, (x, y), batch_size=100, progress=False)}


def export_moments() -> Ways:
    folder = Path(tempfile.mkdtemp())
    net = classifier(pb.models.build("timm:tf_efficientnet_lite0"), pb.MeanFieldVI())
    x = torch.randn(1, 3, 224, 224)
    return {OURS: lambda: lambda: pb.export_onnx(net, folder / "model.onnx", "moments", example=x)}


def stage_2() -> Ways:
    mean, std, gradient = cloud(11_200_000)
    settings = pb.plane.PlaneSettings(k=2000)
    return {OURS: lambda: lambda: pb.plane.survey(mean, std, gradient, settings)}


LENET, CIFAR, IMAGENET = (1, 28, 28), (3, 32, 32), (3, 224, 224)

ROWS: dict[str, Row] = {
    "training step, lenet300": Row(
        "training step, LeNet-300-100, batch 128", 2.0, training_step("lenet300", 128, *LENET), rounds=201, memory=PLAIN
    ),
    "training step, lenet5": Row(
        "training step, LeNet-5, batch 128", 1.08, training_step("lenet5", 128, *LENET), rounds=61, memory=PLAIN
    ),
    "training step, resnet20": Row(
        "training step, ResNet-20, batch 128", 1.03, training_step("resnet20", 128, *CIFAR), rounds=7, memory=PLAIN
    ),
    "training step, vit-s": Row(
        "training step, ViT-S, batch 4", 1.3, training_step("vit-s", 4, *IMAGENET), rounds=7, memory=PLAIN
    ),
    "training step, resnet50": Row(
        "training step, ResNet-50, batch 4", 1.3, training_step("resnet50", 4, *IMAGENET), rounds=5, memory=PLAIN
    ),
    "training step, ssvi": Row(
        "SSVI training step, density 0.05, 784-1024-1024-10, batch 128", 0.5, sparse_step, base="dense VI", rounds=41,
        memory="dense VI",
    ),
    "30 samples, lenet300": Row(
        "30 samples, LeNet-300-100, batch 128", 40, thirty_samples("lenet300", 128, *LENET), rounds=31, memory=PLAIN
    ),
    "30 samples, lenet5": Row(
        "30 samples, LeNet-5, batch 128", 31, thirty_samples("lenet5", 128, *LENET), rounds=9, memory=PLAIN
    ),
    "linear, 2dgbnn lenet300": Row(
        "linear, 2DGBNN of LeNet-300-100, batch 128", 12,
        unsampled("lenet300", pb.WeightSharing(k=64, n_min=0), "linear", 128, *LENET), rounds=11, memory=PLAIN,
    ),
    "linear, efficientnet-lite0": Row(
        "linear, EfficientNet-Lite0, batch 4", 5,
        unsampled("timm:tf_efficientnet_lite0", pb.MeanFieldVI(), "linear", 4, *IMAGENET), rounds=3, memory=PLAIN,
    ),
    "moments, resnet20": Row(
        "moments, ResNet-20, batch 128", 3.3, unsampled("resnet20", pb.MeanFieldVI(), "moments", 128, *CIFAR), rounds=5,
        memory=PLAIN,
    ),
    "moments, resnet20, tied": Row(
        "moments, ResNet-20, one std per filter, batch 128", 2.6,
        unsampled("resnet20", pb.VDP(variance="row"), "moments", 128, *CIFAR), rounds=5, memory=PLAIN,
    ),
    "load, vit-s": Row(
        "load of a mean-field ViT-S", 1.0, load("vit-s"), base=None, rounds=3, memory="torch.load",
        memory_of_run_alone=True,
    ),
    "load, resnet50": Row(
        "load of a mean-field ResNet-50", 1.0, load("resnet50"), base=None, rounds=3, memory="torch.load",
        memory_of_run_alone=True,
    ),
    "laplace, 1000 classes": Row(
        "last-layer Laplace fit, 512 features, 1000 classes, 300 images", 3.0, laplace_fit, base=None, rounds=3
    ),
    "onnx, efficientnet-lite0": Row(
        "ONNX moments export of EfficientNet-Lite0", 10, export_moments, base=None, rounds=1
    ),
    "stage 2": Row(
        "stage 2, 11.2 million weights, K = 2000", 6, stage_2, base=None, rounds=1
    ),
}  # fmt: skip
