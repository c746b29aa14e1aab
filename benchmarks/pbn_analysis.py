"""The sections of pbn.py on networks rather than data: cost, speed, variance, weight distributions."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pocketbayes as pb
from cost_model import cost_model
from measure import interleaved, ratios
from peak_memory import peak_memory
from pocketbayes.inference.metrics import flops
from steps import EXAMPLES, Action, deterministic_step
from training_cost import training_bytes

SHAPES = {"lenet300": (1, 28, 28), "resnet20": (3, 32, 32)}
KINDS: dict[str, dict[str, Any]] = {
    "deterministic": {"kind": "deterministic"},
    "PBN 1%": {"kind": "pbn", "rate": 0.01},
    "PBN 5%": {"kind": "pbn", "rate": 0.05},
    "VI": {"kind": "vi"},
    "5-ensemble": {"kind": "ensemble", "members": 5},
}


def _network(model: Any, kind: str, rate: float = 0.0, **_: Any) -> Any:
    method = {"pbn": pb.PBN(rate=rate), "vi": pb.MeanFieldVI()}.get(kind, pb.Deterministic())
    return pb.bayesianize(model, method).train()


def _step(net: Any, x: Tensor, y: Tensor, optimizer: Any, samples: int = 1) -> Action:
    """Run sample by sample and then the KL, so that memory holds one pass at a time."""

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(samples):
            (F.cross_entropy(net(x), y) / samples).backward()
        if net.posterior.noise_size:
            (net.kl() / EXAMPLES).backward()
        optimizer.step()

    return step


# -- cost ---------------------------------------------------------------------------------------------------------

COST: dict[str, Any] = {"batch": 32, "optimizer": "SGD with momentum", "samples": [1, 5]}


def cost(bench: Any) -> None:
    """Compare the paper's model with counted operations, trained values and live bytes, relative to deterministic."""
    for name in SHAPES:
        for samples in COST["samples"]:
            for label, settings in KINDS.items():
                title = f"{name}, {label}, {samples} sample{'s' * (samples > 1)}"
                bench.row(title, lambda name=name, settings=settings, n=samples: _cost_row(name, settings, n))  # type: ignore[misc]


def _cost_row(name: str, settings: dict[str, Any], samples: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = pb.models.build(name)
    x, y = torch.randn(COST["batch"], *SHAPES[name]), torch.arange(COST["batch"]) % 10
    forward = flops(copy.deepcopy(model).eval(), x)
    predicted = cost_model(**settings, samples=samples)
    net = _network(model, **settings)
    members = settings.get("members", 1)
    optimizer = pb.Training(optimizer="sgd", lr=1e-4).make_optimizer(net)
    passes = samples if net.posterior.noise_size else 1
    step = _step(net, x, y, optimizer, passes)
    measured = flops(step) * members / forward
    step()
    parameters = sum(p.numel() for p in model.parameters())
    held = training_bytes(net, optimizer)
    plain = _network(model, "deterministic")
    plain_optimizer = pb.Training(optimizer="sgd", lr=1e-4).make_optimizer(plain)
    plain_step = _step(plain, x, y, plain_optimizer)
    plain_step()
    base = training_bytes(plain, plain_optimizer)
    return {
        "flops of a pass per example": forward / len(x),
        "passes, paper": predicted.passes,
        "passes, measured": measured,
        "parameters, paper": predicted.parameters,
        "parameters, measured": net.census().trainable * members / parameters,
        "memory, paper": predicted.memory,
        "memory, measured": held["total"] * members / base["total"],
        "peak of a step, measured": peak_memory(step) / peak_memory(plain_step),
    }


# -- speed --------------------------------------------------------------------------------------------------------

SPEED: dict[str, Any] = {"batch": 128, "rounds": {"lenet300": 41, "resnet20": 15}, "threads": 1}


def speed(bench: Any) -> None:
    """Measure the time of a training step with one weight sample relative to plain PyTorch, interleaved."""
    for name, shape in SHAPES.items():
        bench.row(name, lambda name=name, shape=shape: _speed_row(name, shape))


def _speed_row(name: str, shape: tuple[int, ...]) -> dict[str, float]:
    torch.manual_seed(0)
    model = pb.models.build(name)
    x, y = torch.randn(SPEED["batch"], *shape), torch.arange(SPEED["batch"]) % 10
    plain = copy.deepcopy(model).train()
    steps = {"deterministic": deterministic_step(plain, x, y)}
    for label in ("PBN 1%", "PBN 5%", "VI"):
        net = _network(model, **KINDS[label])
        steps[label] = _step(net, x, y, pb.Training(optimizer="sgd", lr=1e-4).make_optimizer(net))
    return ratios(interleaved(steps, SPEED["rounds"][name], warmup=3), "deterministic")


# -- networks trained on MNIST ------------------------------------------------------------------------------------

NETWORKS = ("PBN-1", "PBN-5", "PBN-10", "PBN-20", "PBN-40", "PBN-60", "PBN-80", "PBN-95", "PBN-100")
WEIGHTS: dict[str, Any] = {
    "networks": "LeNet-300-100 of the MNIST section, seed 0",
    "images": 200,
    "draws": 300,
    "variance": "of the predicted class's logit",
    "values per sample in the KS test": 2000,
    "bins": 60,
}


def weights(bench: Any) -> None:
    """Compare predicted with sampled variance, and the weights of PBN with those of the ensemble."""
    folder = bench.work.parent / "mnist"
    x = bench.load("mnist", "test", subset=WEIGHTS["images"]).__getitems__(range(WEIGHTS["images"]))[0]
    for name in NETWORKS:
        if (folder / f"{name}.pocket").exists():
            label = name.replace("-", " ") + "%"
            bench.row(f"variance, {label}", lambda name=name: _variance_row(pb.load(folder / f"{name}.pocket"), x))
    if (folder / "PBN-5.pocket").exists():
        nets = pb.load(folder / "PBN-5.pocket"), pb.load(folder / "ensemble-0.pocket")
        bench.row("distributions, PBN 5%", lambda: _distributions(*nets))


def _variance_row(net: Any, x: Tensor) -> dict[str, Any]:
    """Return the first-order std of the predicted logit relative to draws, and Spearman's rank correlation."""
    from scipy.stats import spearmanr

    predicted = net.eval().linear(x, "predicted")
    chosen = predicted.index[:, :1]
    torch.manual_seed(0)
    with torch.no_grad():
        drawn = torch.stack([net(x).gather(1, chosen)[:, 0] for _ in range(WEIGHTS["draws"])]).std(0)
    std = predicted.variance[:, 0].sqrt()
    mean_std = net.posterior.moments()[1]
    return {
        "predicted over sampled std": float((std / drawn).median()),
        "spearman": float(spearmanr(std.numpy(), drawn.numpy()).statistic),
        "sampled std of the logit": float(drawn.mean()),
        "mean std of random weights": float(mean_std[mean_std > 0].mean().detach()),
        "fractions": net.posterior.fractions(),
    }


def _distributions(partial: Any, ensemble: Any) -> dict[str, Any]:
    """Compare pooled draws of PBN with the members' weights by layer, with a two-sample KS test."""
    from scipy.stats import ks_2samp

    torch.manual_seed(0)
    with torch.no_grad():
        draws = [partial.posterior.sample() for _ in ensemble.networks]
        members = [network.posterior.moments()[0] for network in ensemble.networks]
    result: dict[str, Any] = {}
    count = WEIGHTS["values per sample in the KS test"]
    for slot in partial.layout.slots:
        ours, theirs = (torch.stack([v[slot.start : slot.stop].detach() for v in each]) for each in (draws, members))
        generator = torch.Generator().manual_seed(0)
        some = [v.flatten()[torch.randperm(v.numel(), generator=generator)[:count]].numpy() for v in (ours, theirs)]
        test = ks_2samp(*some)
        low, high = float(torch.min(ours.min(), theirs.min())), float(torch.max(ours.max(), theirs.max()))
        histograms = [torch.histc(v, WEIGHTS["bins"], low, high).int().tolist() for v in (ours, theirs)]
        result[slot.name] = {
            "ks statistic": float(test.statistic),
            "p": float(test.pvalue),
            "low": low,
            "high": high,
            "PBN": histograms[0],
            "ensemble": histograms[1],
        }
    return result
