"""Uncertainty without sampling: how close it comes to weight samples, and what a pass costs.

python benchmarks/propagation.py --data-dir DIR --weights resnet20.th [--images 300] [--draws 300] [--rounds 9]

A trained ResNet-20 on CIFAR-10, every weight with a std of 2 % and 10 % of the weights' own std in its layer: the std
of the logits by moments and by the delta method over that of weight samples, by layer and at the output; its rank
correlation over images; NLL and ECE of the probabilities; times over one forward pass.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import pocketbayes as pb
from measure import interleaved, ratios, write_result
from pocketbayes.metrics import Classification
from pocketbayes.posteriors.base import softplus_inverse
from speed import deterministic_step, peer_model, thirty_passes

SPREADS = (0.02, 0.1)
LAYERS = ("bn1", "layer1", "layer2", "layer3", "avgpool", "linear")


def with_spread(model: nn.Module, spread: float) -> pb.Network:
    """The network whose stds are a fraction of the spread of each layer's weights."""
    net = pb.bayesianize(model, pb.MeanFieldVI())
    assert isinstance(net, pb.Network)
    views = net.layout.views(net.posterior.moments()[0].detach())
    std = torch.cat([torch.full_like(view, spread * float(view.std())).flatten() for view in views])
    with torch.no_grad():
        net.posterior.rho.copy_(softplus_inverse(std))
    return net


@contextmanager
def watched(net: pb.Network, seen: Callable[[str, Any], None]) -> Iterator[None]:
    """Tells `seen` the output of every layer in LAYERS."""
    hooks = [
        net.model.get_submodule(name).register_forward_hook(lambda _, __, output, name=name: seen(name, output))
        for name in LAYERS
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def sampled(net: pb.Network, x: Tensor, draws: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of all draws, and the std of every layer's output over them."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add(name: str, output: Tensor) -> None:
        first, second = sums.get(name, (torch.zeros(()), torch.zeros(())))
        value = output.double()
        sums[name] = first + value, second + value.square()

    logits = []
    with torch.no_grad(), net.using("sample"), watched(net, add):
        for draw in range(draws):
            torch.manual_seed(draw)
            logits.append(net(x))
    stds = {k: (second / draws - (first / draws).square()).clamp_min(0).sqrt() for k, (first, second) in sums.items()}
    return torch.stack(logits), stds


def agreement(std: Tensor, reference: Tensor, predicted: Tensor) -> dict[str, float]:
    """The ratio of stds, and rank correlations over images."""
    rows = torch.arange(len(std))
    return {
        "ratio": float((std / reference).mean()),
        "ratio, predicted class": float((std[rows, predicted] / reference[rows, predicted]).mean()),
        "spearman, predicted class": float(spearmanr(std[rows, predicted], reference[rows, predicted])[0]),
        "spearman, mean over classes": float(spearmanr(std.mean(1), reference.mean(1))[0]),
    }


def quality(probs: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, NLL and ECE."""
    measure = Classification(probs.shape[1])
    measure.update(probs, y)
    return {name: value for name, value in measure.compute().items() if name in ("accuracy", "nll", "ece")}


def fidelity(model: nn.Module, x: Tensor, y: Tensor, spread: float, draws: int) -> dict[str, Any]:
    """How close moments and the delta method come to weight samples."""
    net = with_spread(model, spread)
    logits, stds = sampled(net, x, draws)
    reference = logits.std(0)
    with torch.no_grad():
        plain = model(x)
    predicted = plain.argmax(1)
    result: dict[str, Any] = {"agreement": {}, "layers": {}}
    for propagation in ("moments", "moments-exact"):
        layers: dict[str, float] = {}

        def add(name: str, output: Tensor, layers: dict[str, float] = layers) -> None:
            if not isinstance(output, pb.Gaussian):  # the counting pass before the first one
                return
            moves = stds[name] > 0
            layers[name] = float((output.stddev.double()[moves] / stds[name][moves]).median())

        with torch.no_grad(), net.using(propagation), watched(net, add):
            output = net(x)
        result["agreement"][propagation] = agreement(output.stddev, reference, predicted)
        result["layers"][propagation] = layers
    result["agreement"]["linear"] = agreement(net.linear(x, "all").variance.sqrt(), reference, predicted)
    probs = logits[:100].softmax(-1).mean(0)
    result["probabilities"] = {"100 weight samples": quality(probs, y), "at the mean": quality(plain.softmax(1), y)}
    for classes in (None, "predicted", "margin", "all"):
        for readout in ("sample", "probit", "taylor"):
            propagation = "linear" if classes else "moments"
            label = f"linear ({classes}), {readout}" if classes else f"moments, {readout}"
            answer = pb.predict(net, x, propagation=propagation, readout=readout, classes=classes or "all")
            assert answer.probs is not None
            result["probabilities"][label] = quality(answer.probs, y)
    return result


def passes(model: nn.Module, x: Tensor, rounds: int) -> dict[str, float]:
    """Times over one forward pass of the plain model."""
    net = with_spread(model, 0.02)

    def run(propagation: str) -> Callable[[], object]:
        def action() -> None:
            with net.using(propagation), torch.no_grad():
                net(x)

        return action

    def plain() -> None:
        with torch.no_grad():
            model(x)

    actions: dict[str, Callable[[], object]] = {
        "forward": plain,
        "moments": run("moments"),
        "moments-exact": run("moments-exact"),
        "linear, predicted class": lambda: net.linear(x, "predicted"),
        "linear, margin": lambda: net.linear(x, "margin"),
    }
    result = ratios(interleaved(actions, rounds), "forward")
    peer = peer_model(model)
    if peer is not None:
        few = interleaved({"moments": run("moments"), "peer": thirty_passes(peer.eval(), x)}, max(rounds // 3, 3))
        result["moments over 30 samples by bayesian-torch"] = few["moments"] / few["peer"]
    return result


def training_step(name: str, x: Tensor, rounds: int) -> dict[str, float]:
    """A step of VDP++ over a deterministic one."""
    model = pb.models.build(name)
    y = torch.randint(0, 10, (len(x),))
    net = pb.bayesianize(model, pb.VDP()).train()
    assert isinstance(net, pb.Network)
    likelihood = pb.Categorical()
    optimizer = pb.Training(optimizer="sgd", lr=1e-4).make_optimizer(net)

    def step() -> None:
        optimizer.zero_grad()
        (likelihood.nll(net(x), y) + net.kl() * 1e-6).backward()
        optimizer.step()

    actions = {"deterministic": deterministic_step(copy.deepcopy(model).train(), x, y), "vdp": step}
    return ratios(interleaved(actions, rounds), "deterministic")


def test_images(folder: str, count: int) -> tuple[Tensor, Tensor]:
    """Normalised as the given weights expect it."""
    data = pb.data.load("cifar10", "test", folder, mean="imagenet", subset=count)
    pairs = [data[i] for i in range(len(data))]
    return torch.stack([x for x, _ in pairs]), torch.tensor([int(y) for _, y in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--weights", required=True, help="a checkpoint of ResNet-20 trained on CIFAR-10")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--note", default="", help="what to know of the machine, written beside the figures")
    parser.add_argument("--name", default="propagation", help="of the result file")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = pb.models.build("resnet20").eval()
    pb.models.load_weights(model, arguments.weights)
    x, y = test_images(arguments.data_dir, arguments.images)
    vit = pb.models.build("vit-ti", image_size=32, patch_size=4, classes=10).eval()
    result = {
        "note": arguments.note,
        "images": arguments.images,
        "draws": arguments.draws,
        "rounds": arguments.rounds,
        "time over a forward pass": {
            "resnet20, batch 64": passes(model, x[:64], arguments.rounds),
            "resnet20, batch 256": passes(model, x[:256], arguments.rounds),
            "vit-ti (32x32, 65 tokens), batch 16": passes(vit, x[:16], arguments.rounds),
        },
        "training step over deterministic": {
            "lenet5, batch 128": training_step("lenet5", torch.randn(128, 1, 28, 28), arguments.rounds),
            "resnet20, batch 64": training_step("resnet20", x[:64], arguments.rounds),
        },
        "fidelity": {f"{s:.0%} std": fidelity(model, x, y, s, arguments.draws) for s in SPREADS},
    }
    print(write_result(arguments.name, result))


if __name__ == "__main__":
    main()
