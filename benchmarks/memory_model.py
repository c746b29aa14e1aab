"""What a ViT-L of each storage needs on 8, 64 and 512 devices: bytes held and bytes sent, by formulas that tests check.

python benchmarks/memory_model.py

Replicated: every device holds all (DDP), gradients are summed in a ring. Sharded: every device holds 1/W of
all that is kept per weight; a pass gathers one block after the other, the next one while the last is used, forward and
backward, and scatters its gradients to their owners. Nothing is run on 512 devices: the walk over the blocks is
simulated. Float32, AdamW. Writes results/memory-model.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import pocketbayes as pb
from measure import write_result
from pocketbayes.models.vit import VisionTransformer
from pocketbayes.posteriors.layout import Layout

FLOAT = 4
DEVICES = (8, 64, 512)
IMAGES = 32
"""Images per device in a step."""
VIT_L = {"dim": 1024, "heads": 16, "depth": 24}


@dataclass(frozen=True)
class Storage:
    """What training keeps, moves and makes, per weight.

    Attributes:
        trained: Trained values.
        fixed: Bytes kept besides: indices, the centre of a prior.
        workspace: Bytes that live during a step only: drawn weights, noise, the gradients to them.
        gathered: Bytes that others need of a weight in a pass, where it is sharded.
        scattered: Bytes of gradient that go back to its owner. None where owners are not needed: the trained values are
            so few that all devices hold them and sum their gradients.
    """

    trained: float
    fixed: float
    workspace: float
    gathered: float
    scattered: float | None


def mean_field(local: bool = False) -> Storage:
    """A mean and a rho each. A drawn weight is gathered as one value; local noise needs its mean and std."""
    each = 2 * FLOAT if local else FLOAT
    return Storage(trained=2, fixed=0, workspace=3 * FLOAT, gathered=each, scattered=each)


def shared(outliers: float = 0.03, ellipses: float = 0.05, neighbours: int = 5, centre: bool = False) -> Storage:
    """An int32 each; outliers with mean and rho; ellipse points with the numbers and shares of their neighbours.

    `centre`: its default prior is centred on the pretrained weights.
    """
    fixed = 4 + ellipses * neighbours * (8 + FLOAT) + (FLOAT if centre else 0)
    return Storage(trained=2 * outliers, fixed=fixed, workspace=2 * FLOAT, gathered=4, scattered=None)


def sparse(density: float = 0.1) -> Storage:
    """Mean, rho and an int32 position for those present; dense means and stds, and gradients to them, for a pass."""
    moved = density * 2 * FLOAT
    return Storage(2 * density, density * 4, workspace=4 * FLOAT, gathered=moved + density * 4, scattered=moved)


def partial(rate: float = 0.05) -> Storage:
    """A mean each, a rho and an int64 position for the few that are random."""
    return Storage(1 + rate, rate * 8, workspace=(2 + rate) * FLOAT, gathered=FLOAT, scattered=FLOAT)


POINT = Storage(trained=1, fixed=0, workspace=FLOAT, gathered=FLOAT, scattered=FLOAT)
STORAGES = {
    "deterministic": POINT,
    "mean-field": mean_field(),
    "2DGBNN, its last stage": shared(centre=True),
    "SSVI, 10 %": sparse(),
    "PBN, 5 %": partial(),
}


@dataclass(frozen=True)
class Block:
    """A part of the network that is gathered as one: its weights, and its other parameters."""

    weights: int
    points: int


def kept(storage: Storage, blocks: Sequence[Block]) -> float:
    """Bytes from step to step: values, gradients and AdamW's two moments, and what is fixed."""
    weights, points = _sums(blocks)
    return 4 * FLOAT * (storage.trained * weights + points) + storage.fixed * weights


def replicated(storage: Storage, blocks: Sequence[Block], devices: int) -> dict[str, float]:
    """Bytes held by a device (DDP's buckets are another copy of the gradients), and bytes it sends in a step."""
    weights, points = _sums(blocks)
    gradients = FLOAT * (storage.trained * weights + points)
    held = kept(storage, blocks) + gradients + storage.workspace * weights
    return {"held": held, "sent": 2 * gradients * (devices - 1) / devices}


def sharded(storage: Storage, blocks: Sequence[Block], devices: int) -> dict[str, float]:
    """The same for 1/W of everything: a walk forward and backward over the blocks, the next one always on its way."""
    ring = (devices - 1) / devices
    all_hold = storage.scattered is None
    split = replace(storage, trained=0) if all_hold else storage
    everywhere = 4 * FLOAT * storage.trained * _sums(blocks)[0] if all_hold else 0.0
    at_rest = everywhere + sum(kept(split, [block]) for block in blocks) / devices
    peak, sent = 0.0, 0.0
    walk = [*blocks, *reversed(blocks)]
    for number, block in enumerate(walk):
        coming = walk[number + 1] if number + 1 < len(walk) else Block(0, 0)
        arriving = storage.gathered * coming.weights + FLOAT * coming.points
        working = (storage.workspace + storage.gathered) * block.weights + 2 * FLOAT * block.points
        peak = max(peak, working + arriving)
        sent += ring * (storage.gathered * block.weights + FLOAT * block.points)
        if number >= len(blocks):
            sent += ring * ((storage.scattered or 0.0) * block.weights + FLOAT * block.points)
    if all_hold:
        sent += 2 * ring * FLOAT * storage.trained * _sums(blocks)[0]
    return {"held": at_rest + peak, "sent": sent}


def _sums(blocks: Sequence[Block]) -> tuple[int, int]:
    return sum(block.weights for block in blocks), sum(block.points for block in blocks)


def blocks_of(model: nn.Module, names: Callable[[str], str]) -> list[Block]:
    """The parameters by the block that `names` gives them, in the model's order."""
    covered = {slot.name for slot in Layout.of(model).slots}
    found: dict[str, list[int]] = {}
    for name, parameter in model.named_parameters():
        found.setdefault(names(name), [0, 0])[name not in covered] += parameter.numel()
    return [Block(*counts) for counts in found.values()]


def activations(forward: Callable[[Tensor], Tensor], shape: tuple[int, ...], device: str = "cpu") -> int:
    """Bytes that a pass keeps for its backward pass, per example: the difference of two examples and one."""

    def saved(examples: int) -> int:
        sizes: dict[int, int] = {}
        held: list[Tensor] = []  # so that no address is used twice

        def note(tensor: Tensor) -> Tensor:
            held.append(tensor)
            storage = tensor.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            forward(torch.zeros(examples, *shape, device=device))
        return sum(sizes.values())

    return saved(2) - saved(1)


def local_ratio() -> float:
    """How many times more local noise keeps for the backward pass than plain weights, on a small transformer."""
    torch.manual_seed(0)
    model = VisionTransformer(dim=32, heads=4, depth=2, patch_size=4, image_size=16, classes=10)
    shape = (3, 16, 16)
    local = pb.bayesianize(model, pb.MeanFieldVI(propagation="local")).train()
    local(torch.zeros(1, *shape))  # the plan is made on the first call
    return activations(local, shape) / activations(model, shape)


def main() -> None:
    with torch.device("meta"):
        model = VisionTransformer(**VIT_L)
    blocks = blocks_of(model, lambda name: ".".join(name.split(".")[:2]) if name.startswith("blocks") else name[:4])
    image = activations(model, (3, 224, 224), "meta")
    ratio = local_ratio()
    weights, points = _sums(blocks)
    rows: dict[str, Any] = {}
    for name, storage in STORAGES.items():
        acts = IMAGES * image * (ratio if name.startswith("SSVI") else 1.0)
        rows[name] = {"kept": kept(storage, blocks), "activations": acts}
        for way in (replicated, sharded):
            rows[name][way.__name__] = {str(devices): way(storage, blocks, devices) for devices in DEVICES}
        print(name, json.dumps(rows[name]), flush=True)
    result = {
        "model": "ViT-L/16", "weights": weights, "points": points, "blocks": len(blocks), "images per device": IMAGES,
        "activation bytes per image": image, "local noise keeps times more": round(ratio, 3), "rows": rows,
    }  # fmt: skip
    write_result("memory-model", result)


if __name__ == "__main__":
    main()
