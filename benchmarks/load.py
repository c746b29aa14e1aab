"""Measure memory under load: a million images evaluated with 30 samples, and ten thousand small predictions.

python benchmarks/load.py [--images 1000000] [--calls 10000]

Images are generated on demand. Writes results/load.json and docs/figures/load.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pocketbayes as pb
from measure import FIGURES, memory, write_result
from pocketbayes.data import Dataset, Info

SIDE, CLASSES, SAMPLES, BATCH, POINTS = 16, 10, 30, 1000, 200
Curve = list[tuple[float, float]]


class Generated(Dataset):
    """Noise around a pattern per class; images are computed from their index and not kept."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.info = Info("generated", "classification", CLASSES, None, (1, SIDE, SIDE))
        self.patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        labels = torch.as_tensor(indices) % CLASSES
        noise = torch.randn(len(labels), 1, SIDE, SIDE, generator=torch.Generator().manual_seed(int(indices[0])))
        return self.patterns[labels] + 2 * noise, labels

    def take(self, indices: Tensor) -> Generated:
        raise NotImplementedError


def resident() -> float:
    """Return the resident memory in megabytes."""
    return memory() / 2**20


def network() -> pb.Network:
    """Return a small, briefly trained network."""
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=SIDE * SIDE, out_features=CLASSES, hidden=[32])
    found = pb.fit("bbb", model, Generated(5000), epochs=3, progress=False)
    assert isinstance(found, pb.Network)
    return found


def evaluated(net: pb.Network, images: int) -> tuple[Curve, dict[str, float]]:
    """Return memory against images."""
    curve: Curve = []
    seen, step = 0, max(images // POINTS, BATCH)

    def note(count: int) -> None:
        nonlocal seen
        seen += count
        if seen % step < count:
            curve.append((seen, resident()))

    measures = pb.evaluate(net, Generated(images), samples=SAMPLES, batch_size=BATCH, on_batch=note)
    return curve, measures


def predicted(net: pb.Network, calls: int) -> Curve:
    """Return memory against calls."""
    curve: Curve = []
    x = Generated(4).__getitems__(range(4))[0]
    step = max(calls // POINTS, 1)
    for call in range(1, calls + 1):
        pb.predict(net, x, samples=3, seed=call)
        if call % step == 0:
            curve.append((call, resident()))
    return curve


def summary(curve: Curve) -> dict[str, Any]:
    """Return growth after the first tenth, in which allocators settle, and the least-squares slope."""
    settled = np.array(curve[len(curve) // 10 :])
    slope = float(np.polyfit(settled[:, 0], settled[:, 1], 1)[0]) * 2**20
    return {
        "growth in MB": round(float(settled[-1, 1] - settled[0, 1]), 2),
        "most minus least in MB": round(float(np.ptp(settled[:, 1])), 2),
        "bytes for each": round(slope, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=10_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    net = network()
    images, measures = evaluated(net, arguments.images)
    print(summary(images), measures, flush=True)
    calls = predicted(net, arguments.calls)
    print(summary(calls), flush=True)
    result = {
        "images": {"count": arguments.images, "samples": SAMPLES, "accuracy": measures["accuracy"], **summary(images)},
        "calls": {"count": arguments.calls, "samples": 3, **summary(calls)},
    }
    curves = {name: [[x, round(y, 2)] for x, y in curve] for name, curve in (("images", images), ("calls", calls))}
    write_result("load", {**result, "curves": curves})
    draw(curves)


def draw(curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draw the figure of the docs."""
    from paper_figures.memory import memory
    from pocketbayes.reporting.figures import save

    titles = {"images": f"images evaluated, {SAMPLES} samples each", "calls": "calls of predict"}
    save(memory({title: [(x, y) for x, y in curves[name]] for name, title in titles.items()}), FIGURES / "load.png")


if __name__ == "__main__":
    main()
