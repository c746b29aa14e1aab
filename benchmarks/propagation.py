"""Measure uncertainty without sampling: its fidelity to weight samples, and its cost.

python benchmarks/propagation.py --data-dir DATA --weights resnet20-12fca82f.th [--section fidelity|memory|time]

- fidelity: the std of every layer and of the logits by moments and by the delta method relative to weight samples, its
  rank correlation over images, and NLL and ECE of the probabilities compared with 100 weight samples. LeNets trained on
  MNIST with local reparameterisation have their learned stds; a pretrained ResNet-20 on CIFAR-10 and a ViT-Ti trained
  on MNIST have stds of 2 % and 10 % of the std of each layer's weights.
- memory: the peak bytes of live tensors in a pass and in a training step, counted, the same in every run.
- time: ratios to a deterministic pass or step, interleaved, in CPU seconds.

Rows are written to results/propagation.json; finished rows are not run again.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pocketbayes as pb
from measure import Rows, interleaved, ratios
from networks import pretrained_resnet20, trained_vit
from peak_memory import peak_memory
from pocketbayes.inference.metrics import Classification
from pocketbayes.inference.prediction import outputs_of, passes_for, scaled
from pocketbayes.posteriors.base import softplus_inverse
from pocketbayes.propagation import Ask
from steps import Action, deterministic_step, our_step, peer_model, thirty_passes, without_gradients

NAME = "propagation"
TRAINED: dict[str, dict[str, Any]] = {
    "recipe": {"subset": None, "std_init": 0.01, "annealing": "linear-up", "batch_size": 128, "std_lr": 3e-4},
    "wide": {"subset": 12_000, "std_init": 0.02, "annealing": "constant", "batch_size": 64, "std_lr": 3e-3},
}
"""Three epochs of local reparameterisation: as in the recipe mnist-lenet300-lrt, or on few images with the full
weight of the KL and a high learning rate, which widens the stds until samples are worse than the mean."""


@dataclass(frozen=True)
class Subject:
    """A network, its test images, and its number of samples.

    Attributes:
        model: Its name.
        data: Its data set.
        layers: Modules whose outputs are compared.
        images: Test images whose stds are compared with weight samples.
        draws: The number of weight samples.
        judged: Test images for NLL and ECE; as many follow for the calibration factor.
        spread: Stds as a fraction of the std of each layer's weights; None for learned stds.
        training: The key in TRAINED.
    """

    model: str
    data: str
    layers: tuple[str, ...]
    images: int
    draws: int
    judged: int
    spread: float | None = None
    training: str = "recipe"


LENET300 = ("linear1", "linear2", "head")
LENET5 = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "fc3")
RESNET = ("bn1", "layer1", "layer2", "layer3", "avgpool", "linear")
BLOCKS = ("patch_embed", "blocks.0", "blocks.3", "blocks.7", "blocks.11", "norm", "head")
SUBJECTS = {
    "LeNet-300-100, trained": Subject("lenet300", "mnist", LENET300, 200, 10_000, 1000),
    "LeNet-300-100, wide stds": Subject("lenet300", "mnist", LENET300, 200, 10_000, 1000, training="wide"),
    "LeNet-5, trained": Subject("lenet5", "mnist", LENET5, 200, 10_000, 1000),
    "ResNet-20, std 2 %": Subject("resnet20", "cifar10", RESNET, 128, 2000, 500, 0.02),
    "ResNet-20, std 10 %": Subject("resnet20", "cifar10", RESNET, 128, 2000, 500, 0.1),
    "ViT-Ti, std 2 %": Subject("vit-ti", "mnist", BLOCKS, 100, 1000, 300, 0.02),
    "ViT-Ti, std 10 %": Subject("vit-ti", "mnist", BLOCKS, 100, 1000, 300, 0.1),
}


# -- networks ---------------------------------------------------------------------------------------------------------


def with_spread(model: nn.Module, spread: float) -> pb.Network:
    """Return the network with stds that are a fraction of the std of each layer's weights."""
    net = pb.bayesianize(model, pb.MeanFieldVI())
    assert isinstance(net, pb.Network)
    views = net.layout.views(net.posterior.moments()[0].detach())
    std = torch.cat([torch.full_like(view, spread * float(view.std())).flatten() for view in views])
    with torch.no_grad():
        net.posterior.rho.copy_(softplus_inverse(std))
    return net.eval()


class Bench:
    """The data and the networks."""

    def __init__(self, data_dir: Path, weights: Path) -> None:
        self.data_dir, self.weights = data_dir, weights

    def images(self, data: str, split: str, **options: Any) -> pb.data.Dataset:
        mean = {"mean": "imagenet"} if data == "cifar10" else {}
        return pb.data.load(data, split, self.data_dir, val_fraction=0.0, **mean, **options)

    def resnet20(self) -> nn.Module:
        return pretrained_resnet20(self.weights).eval()

    @cached_property
    def vit(self) -> nn.Module:
        return trained_vit(self.images("mnist", "train", subset=12_000)).to_module().eval()

    def network(self, subject: Subject) -> pb.Network:
        if subject.spread is not None:
            model = self.resnet20() if subject.model == "resnet20" else self.vit
            return with_spread(model, subject.spread)
        chosen = TRAINED[subject.training]
        train = self.images("mnist", "train", subset=chosen["subset"])
        torch.manual_seed(0)
        method = pb.MeanFieldVI(propagation="local", std_init=chosen["std_init"], annealing=chosen["annealing"])
        net = pb.fit(
            method, pb.models.build(subject.model), train, epochs=3, lr=1e-3, batch_size=chosen["batch_size"],
            std_lr=chosen["std_lr"], progress=False,
        )  # fmt: skip
        assert isinstance(net, pb.Network)
        return net.eval()


# -- fidelity ---------------------------------------------------------------------------------------------------------


@contextmanager
def watched(net: pb.Network, layers: tuple[str, ...], seen: Callable[[str, Any], None]) -> Iterator[None]:
    """Call `seen` with the output of each layer."""
    hooks = [
        net.model.get_submodule(name).register_forward_hook(lambda _, __, output, name=name: seen(name, output))
        for name in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def sampled(net: pb.Network, x: Tensor, layers: tuple[str, ...], draws: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the std of the logits and of every layer's output over weight samples."""
    with torch.no_grad(), net.using("mean"):
        centres: dict[str, Tensor] = {}
        with watched(net, layers, lambda name, output: centres.update({name: output.clone()})):
            centres[""] = net(x)
    sums = {name: (torch.zeros_like(centre), torch.zeros_like(centre)) for name, centre in centres.items()}

    def add(name: str, output: Tensor) -> None:
        change = output - centres[name]  # relative to the output at the mean, so that single precision suffices
        sums[name][0].add_(change)
        sums[name][1].addcmul_(change, change)

    with torch.no_grad(), net.using("sample"), net.posterior.frozen(), watched(net, layers, add):
        for draw in range(draws):
            torch.manual_seed(draw)
            add("", net(x))
    stds = {k: (second / draws - (first / draws).square()).clamp_min(0).sqrt() for k, (first, second) in sums.items()}
    return stds.pop(""), stds


def agreement(std: Tensor, reference: Tensor, predicted: Tensor) -> dict[str, float]:
    """Return the ratio of stds, and rank correlations over images."""
    rows = torch.arange(len(std))
    return {
        "ratio": float((std / reference).mean()),
        "ratio, predicted class": float((std[rows, predicted] / reference[rows, predicted]).mean()),
        "spearman, predicted class": float(spearmanr(std[rows, predicted], reference[rows, predicted])[0]),
        "spearman, mean over classes": float(spearmanr(std.mean(1), reference.mean(1))[0]),
    }


def quality(probs: Tensor, y: Tensor) -> dict[str, float]:
    """Return accuracy, NLL and ECE."""
    measure = Classification(probs.shape[1])
    measure.update(probs, y)
    return {name: value for name, value in measure.compute().items() if name in ("accuracy", "nll", "ece")}


def stds(net: pb.Network, x: Tensor, subject: Subject) -> dict[str, Any]:
    """Return the stds by layer and at the output."""
    reference, layer_stds = sampled(net, x, subject.layers, subject.draws)
    with torch.no_grad(), net.using("mean"):
        predicted = net(x).argmax(1)
    result: dict[str, Any] = {"agreement": {}, "layers": {}}
    for propagation in ("moments", "moments-exact"):
        layers: dict[str, float] = {}

        def add(name: str, output: Tensor, layers: dict[str, float] = layers) -> None:
            if not isinstance(output, pb.Gaussian):  # the first call also runs the counting pass
                return
            moves = layer_stds[name] > 1e-3 * layer_stds[name].mean()
            layers[name] = float((output.stddev[moves] / layer_stds[name][moves]).median())

        with torch.no_grad(), net.using(propagation), watched(net, subject.layers, add):
            output = net(x)
        result["agreement"][propagation] = agreement(output.stddev, reference, predicted)
        result["layers"][propagation] = layers
    result["agreement"]["linear"] = agreement(net.linear(x, "all").variance.sqrt(), reference, predicted)
    return result


def linear_layers(net: pb.Network, x: Tensor, layers: tuple[str, ...], draws: int) -> dict[str, float]:
    """Return, for every layer, the std of J dw relative to that of f(mean + dw) - f(mean) for the same draws dw."""
    mean = net.posterior.moments()[0].detach()

    def outputs(flat: Tensor) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        with watched(net, layers, lambda name, output: seen.update({name: output})):
            net.run_at(flat, x)
        return seen

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the other kernels have no forward derivative
        centres = outputs(mean)
        squares = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in centres.items()}
        for draw in range(draws):
            torch.manual_seed(draw)
            change = net.posterior.sample() - mean
            moved = torch.func.jvp(outputs, (mean,), (change,))[1]
            for name, value in outputs(mean + change).items():
                squares[name][0].addcmul_(moved[name], moved[name])
                squares[name][1].add_((value - centres[name]).square())
    found = {}
    for name, (first, second) in squares.items():
        moves = second > 1e-6 * second.mean()
        found[name] = float((first[moves] / second[moves]).sqrt().median())
    return found


def probabilities(net: pb.Network, x: Tensor, y: Tensor, half: int) -> dict[str, dict[str, float]]:
    """Return NLL and ECE on the first images; the others fit the calibration factor of rows that have one."""
    first, rest = (x[:half], y[:half]), (x[half:], y[half:])
    samples = pb.predict(net, first[0], 100, "sample").probs
    rows = {"100 weight samples": quality(samples, first[1])}
    rows["at the mean"] = quality(pb.predict(net, first[0], propagation="mean").probs, first[1])
    asked = {"moments": "all", "linear, predicted": "predicted", "linear, margin": "margin", "linear, all": "all"}
    for label, classes in {**asked, "linear, covariance": "covariance"}.items():
        propagation = label.split(",")[0]
        (output,) = outputs_of(net, first[0], Ask(1, propagation, classes=classes))

        def read(readout: Any, factor: float, output: Any = output) -> dict[str, float]:
            passes = passes_for(net, Ask(readout=readout))
            passes.add(scaled(output, factor))
            return quality(passes.summary().mean, first[1])

        for readout in ("sample", "probit", "taylor"):
            rows[f"{label}; {readout}"] = read(readout, 1.0)
        if label in ("moments", "linear, predicted"):
            factor = pb.fit_variance_scale(net, rest, propagation=propagation, classes=classes)
            rows[f"{label}; sample; calibrated"] = {**read("sample", factor), "variance factor": factor}
    return rows


def fidelity(bench: Bench, only: str | None) -> None:
    rows = Rows(NAME, key="fidelity")
    for name, subject in SUBJECTS.items():
        row: dict[str, Any] = rows.get(name, {})
        if "linear" in row.get("layers", {}) or (only and not name.startswith(only)):
            continue
        net = bench.network(subject)
        x, y = bench.images(subject.data, "test").__getitems__(range(2 * subject.judged))
        if not row:
            row = {"draws": subject.draws, "images": subject.images, "images judged": subject.judged}
            row |= stds(net, x[: subject.images], subject)
            row["probabilities"] = probabilities(net, x, y, subject.judged)
        row["layers"]["linear"] = linear_layers(net, x[:32], subject.layers, min(subject.draws, 100))
        rows.keep(name, row)


# -- cost -------------------------------------------------------------------------------------------------------------


def run(net: pb.Network, propagation: str, x: Tensor) -> Action:
    def action() -> None:
        with net.using(propagation), torch.no_grad():
            net(x)

    return action


def cases(bench: Bench) -> dict[str, tuple[nn.Module, Tensor]]:
    """Yield the cases for measuring passes."""
    torch.manual_seed(0)
    vit = pb.models.build("vit-ti", image_size=32, patch_size=4, classes=10).eval()
    return {
        "resnet20, batch 64": (bench.resnet20(), torch.randn(64, 3, 32, 32)),
        "resnet20, batch 256": (bench.resnet20(), torch.randn(256, 3, 32, 32)),
        "vit-ti (32x32, 65 tokens), batch 16": (vit, torch.randn(16, 3, 32, 32)),
    }


def steps() -> dict[str, dict[str, Action]]:
    """Return training steps: deterministic, VDP++, and on LeNet-5 the full covariance."""
    found: dict[str, dict[str, Action]] = {}
    for name, size, shape in (("lenet5", 16, (1, 28, 28)), ("lenet5", 128, (1, 28, 28)), ("resnet20", 64, (3, 32, 32))):
        torch.manual_seed(0)
        model = pb.models.build(name)
        x, y = torch.randn(size, *shape), torch.randint(0, 10, (size,))
        actions = {"deterministic": deterministic_step(copy.deepcopy(model).train(), x, y)}
        methods: list[pb.Method] = [pb.VDP()] + ([pb.FullCovarianceVDP()] if size == 16 else [])
        for method in methods:
            net = pb.bayesianize(model, method).train()
            assert isinstance(net, pb.Network)
            actions[method.name] = our_step(net, x, y, pb.Categorical().nll)
        found[f"{name}, batch {size}"] = actions
    return found


def time(bench: Bench, rounds: int, note: str) -> None:
    rows = Rows(NAME, key="time")
    rows.keep("conditions", {"rounds": rounds, "threads": torch.get_num_threads(), "note": note})
    for name, (model, x) in cases(bench).items():
        if name in rows:
            continue
        net = with_spread(model, 0.02)
        actions: dict[str, Action] = {
            "forward": without_gradients(partial(model, x)),
            "moments": run(net, "moments", x),
            "moments-exact": run(net, "moments-exact", x),
            "linear, predicted class": partial(net.linear, x, "predicted"),
            "linear, margin": partial(net.linear, x, "margin"),
        }
        row = ratios(interleaved(actions, rounds, clock=process_time), "forward")
        peer = peer_model(model)
        if peer is not None:
            few = {"moments": actions["moments"], "peer": thirty_passes(peer.eval(), x)}
            seconds = interleaved(few, max(rounds // 3, 3), clock=process_time)
            row["moments over 30 samples by bayesian-torch"] = seconds["moments"] / seconds["peer"]
        rows.keep(name, row)
    for name, actions in steps().items():
        if f"training step, {name}" not in rows:
            row = ratios(interleaved(actions, rounds, clock=process_time), "deterministic")
            rows.keep(f"training step, {name}", row)


def peaks(actions: dict[str, Action]) -> dict[str, Any]:
    """Return the peak bytes of each action, and their ratios to the first."""
    for action in actions.values():
        action()  # builds the plans, which happens once
    found = {label: peak_memory(action) for label, action in actions.items()}
    return {"bytes": found, "ratio": ratios(found, next(iter(found)))}


def memory(bench: Bench) -> None:
    rows, measured = Rows(NAME, key="memory"), cases(bench)
    vit = next(model for name, (model, _) in measured.items() if name.startswith("vit"))
    measured["vit-ti (32x32, 65 tokens), batch 128"] = vit, torch.randn(128, 3, 32, 32)  # weights matter less
    for name, (model, x) in measured.items():
        if name not in rows:
            net = with_spread(model, 0.02)
            actions: dict[str, Action] = {
                "forward": without_gradients(partial(model, x)),
                "moments": run(net, "moments", x),
                "linear, predicted class": partial(net.linear, x, "predicted"),
            }
            rows.keep(name, peaks(actions))
    for name, actions in steps().items():
        if f"training step, {name}" not in rows:
            rows.keep(f"training step, {name}", peaks(actions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="a checkpoint of ResNet-20 trained on CIFAR-10")
    parser.add_argument("--section", choices=("fidelity", "memory", "time"), action="append")
    parser.add_argument("--only", help="the network whose fidelity is measured, such as LeNet-5")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--note", default="", help="what to know of the machine, written beside the times")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    bench = Bench(arguments.data_dir, arguments.weights)
    for section in arguments.section or ("fidelity", "memory"):
        if section == "fidelity":
            fidelity(bench, arguments.only)
        elif section == "memory":
            memory(bench)
        else:
            time(bench, arguments.rounds, arguments.note)


if __name__ == "__main__":
    main()
