"""Measure 2DGBNN's files of 2 to 8 bits per weight: a pretrained ResNet-20 on CIFAR-10, accuracy, NLL and bytes.

python benchmarks/pocket_curve.py --data-dir DATA --weights DATA/weights/resnet20-12fca82f.th [--only NAME;...]

Each row has as many Gaussians as its budget allows for the full file, fitted to the means of the pretrained weights,
and 50 steps of training. Finished rows are kept in results/pocket-curve.json and not run again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import pocketbayes as pb
from measure import Rows
from networks import classifier, pretrained_resnet20
from pocketbayes.files.packing import Precision
from pocketbayes.reporting import figures

NAME = "pocket-curve"
PRECISION = Precision("int8", "int8", "bfloat16")
OUTLIERS = 0.4
STEPS, BATCH = 50, 128
TRAINING: dict[str, Any] = {"lr": 1e-5, "std_lr": 5e-2, "freeze_batch_norm": True}
"""Small steps and frozen batch norm, because a centre moves thousands of weights at once."""
BUDGETS = {
    "150 kB": (150_000, 10),
    **{f"{bits} bits": (int(bits * 268_336 / 8), 4) for bits in (4, 3, 2, 5, 6, 8)},
}
"""Size limit in bytes, and samples per measurement."""
ROUNDED = ("int8", "int6", "int5", "int4")
KEPT = ("accuracy", "nll", "ece", "brier", "count")


class Bench:
    def __init__(self, data_dir: Path, weights: Path, work: Path) -> None:
        self.data_dir, self.work = data_dir, work
        self.sizes: dict[int, int] = {}
        self.rows = Rows(NAME, {"model": "resnet20", "data": "cifar10"})
        self.given = classifier(pretrained_resnet20(weights), pb.Deterministic())
        self.test = self.images("test")
        self.train = self.images("train", augment=True, subset=STEPS * BATCH)

    def images(self, split: str, **options: Any) -> Any:
        return pb.data.load("cifar10", split, self.data_dir, mean="imagenet", val_fraction=0.0, **options)

    def deterministic(self) -> None:
        if "deterministic" not in self.rows:
            measures = pb.evaluate(self.given, self.test, batch_size=500)
            sizes = {p: pb.save(self.given, self.work / "given.pocket", precision=p) for p in ("lossless", "int8")}
            row = {k: measures[k] for k in KEPT} | {"bytes": sizes["lossless"], "sizes": sizes}
            self.rows.keep("deterministic", row)

    def rounded(self) -> None:
        """Measure rounding alone: the deterministic network with weights in steps, entropy-coded in the same way."""
        file = self.work / "rounded.pocket"
        for level in ROUNDED:
            if f"rounded, {level}" not in self.rows:
                size = pb.save(self.given, file, precision=Precision(level, level, "bfloat16"))
                net = pb.load(file)
                measures = pb.evaluate(net, self.test, batch_size=500)
                bits = 8 * size / self.given.layout.size
                self.rows.keep(f"rounded, {level}", {k: measures[k] for k in KEPT} | {"bytes": size, "bits": bits})

    def shared(self, k: int, epochs: int) -> pb.Network:
        method = pb.WeightSharing(
            k=k, iterations=0, tau_w=OUTLIERS, gradient_fraction=0.0, merge=None, ellipse=None, n_min=0, std_init=1e-3,
            meanfield_epochs=0, beta=0.01,
        )  # fmt: skip
        net = pb.fit(method, self.given, self.train, epochs=epochs, batch_size=BATCH, progress=False, **TRAINING)
        assert isinstance(net, pb.Network)
        return net

    def most_gaussians(self, budget: int) -> int:
        """Return the largest K whose file fits the budget; training changes values, not the index."""
        low, high = 2, 4
        while self.size(high) <= budget:
            low, high = high, 2 * high
        while high - low > max(1, low // 32):
            middle = (low + high) // 2
            low, high = (middle, high) if self.size(middle) <= budget else (low, middle)
        return low

    def size(self, k: int) -> int:
        if k not in self.sizes:
            self.sizes[k] = pb.save(self.shared(k, 0), self.work / "size.pocket", precision=PRECISION)
        return self.sizes[k]

    def run(self, name: str, budget: int, samples: int) -> None:
        if name in self.rows:
            return
        start = time.process_time()
        file = self.work / "row.pocket"
        k = self.most_gaussians(budget)
        while (size := pb.save(self.shared(k, 1), file, precision=PRECISION)) > budget:
            k -= max(1, k // 32)
        net = pb.load(file)
        assert isinstance(net, pb.Network)
        measures = pb.evaluate(net, self.test, samples=samples, batch_size=500)
        posterior = net.posterior
        assert isinstance(posterior, pb.posteriors.Shared)
        self.rows.keep(
            name,
            {key: measures[key] for key in KEPT}
            | {
                "bytes": size,
                "bits": 8 * size / net.layout.size,
                "budget": budget,
                "gaussians": posterior.gaussians,
                "outliers": posterior.outliers,
                "index bits": posterior.index_bits(),
                "samples": samples,
                "steps": STEPS,
                "cpu seconds": round(time.process_time() - start),
            },
        )


def draw(path: Path) -> None:
    """Draw accuracy and NLL against file size, with lines for the deterministic network."""
    rows = Rows(NAME)
    given = rows["deterministic"]
    shared = sorted((row for row in rows.values() if "budget" in row), key=lambda row: row["bytes"])
    rounded = sorted((rows[f"rounded, {level}"] for level in ROUNDED), key=lambda row: row["bytes"])
    figure, axes = figures.canvas(1, 2)
    for panel, key, scale in ((axes[0, 0], "accuracy", 100), (axes[0, 1], "nll", 1)):
        kilobytes = [row["bytes"] / 1000 for row in shared]
        panel.plot(kilobytes, [scale * row[key] for row in shared], marker="o", label="2DGBNN")
        sizes = [row["bytes"] / 1000 for row in rounded]
        panel.plot(sizes, [scale * row[key] for row in rounded], marker="s", label="deterministic, rounded")
        label = f"deterministic, {given['bytes'] / 1000:.0f} kB"
        panel.axhline(scale * given[key], color=figures.PALETTE[6], linestyle="--", linewidth=1, label=label)
        panel.set(xlabel="kB on disk", ylabel="accuracy, %" if key == "accuracy" else "NLL")
        panel.legend(fontsize=7)
    figures.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "pocketbayes-pocket-curve")
    parser.add_argument("--only", help="names of rows, separated by semicolons")
    parser.add_argument("--figure", type=Path, help="draw the rows that are done into this file, and nothing else")
    arguments = parser.parse_args()
    if arguments.figure is not None:
        draw(arguments.figure)
        return
    if arguments.data_dir is None or arguments.weights is None:
        parser.error("--data-dir and --weights are needed")
    bench = Bench(arguments.data_dir, arguments.weights, arguments.work)
    bench.deterministic()
    bench.rounded()
    for name, (budget, samples) in BUDGETS.items():
        if arguments.only is None or name in arguments.only.split(";"):
            bench.run(name, budget, samples)


if __name__ == "__main__":
    main()
