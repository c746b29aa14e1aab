"""Measure files of one to four bits per weight: accuracy, NLL and calibrated NLL against the bytes of the file.

python benchmarks/pocket_codes.py --data-dir DATA [--only resnet20] [--steps 600] [--seeds 0 1 2]

Pretrained networks (ResNet-20 and ResNet-56 on CIFAR-10) and networks trained here (LeNet-5 and LeNet-300-100 on MNIST)
are compressed by `pb.compress` to a size in bytes. Calibration and selection use only training images, chosen by a
seed; all test images are used once per row. References: the uncompressed network, plain rounding per output
channel, packed by lzma or zstd, and torchao's HQQ, packed by lzma. Finished rows are kept in results/pocket-codes.json.
"""

from __future__ import annotations

import argparse
import lzma
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from measure import Rows
from networks import classifier
from pocketbayes.data.pixels import CropFlip
from pocketbayes.methods import RigL
from pocketbayes.posteriors.quantized import rows as channels

NAME = "pocket-codes"
KEPT = ("accuracy", "nll", "ece", "calibrated_nll", "calibrated_ece", "count")
WEIGHTS = {"resnet20": "resnet20-12fca82f.th", "resnet56": "resnet56-4bfd9763.th"}
BUDGETS = {
    "resnet20": (120_000, 80_000, 76_000, 62_000, 50_000, 40_000),
    "resnet56": (235_000, 180_000),
    "lenet5": (15_000, 10_000),
    "lenet300": (25_000, 15_000),
}
TUNED = {"resnet20": (76_000, 62_000, 50_000, 40_000), "resnet56": (), "lenet5": (15_000,), "lenet300": (25_000,)}
CALIBRATION, VALIDATION = 2000, 1000
GROUP = 64
STARTS: dict[str, tuple[Any, int]] = {"lenet5": (pb.Deterministic(), 6), "lenet300": (RigL(density=0.12), 16)}
"""Method and epochs of the initial training; shifts of up to two pixels, learning rate 2e-3 with cosine decay."""


class Bench:
    """One network with its data and rows."""

    def __init__(self, name: str, data_dir: Path, work: Path, rows: Rows) -> None:
        self.name, self.data_dir, self.work, self.rows = name, data_dir, work, rows
        self.data = "cifar10" if name in WEIGHTS else "mnist"
        self.options: dict[str, Any] = {"val_fraction": 0.0} | ({"mean": "imagenet"} if name in WEIGHTS else {})
        self.net = self.network()
        self.test = pb.data.load(self.data, "test", data_dir, **self.options)

    def network(self) -> pb.Network:
        if self.name in WEIGHTS:
            model = pb.models.build(self.name)
            pb.models.load_weights(model, self.data_dir / "weights" / WEIGHTS[self.name])
            return classifier(model, pb.Deterministic())
        file = self.work / f"{self.name}.pocket"
        if not file.exists():
            train = pb.data.load(self.data, "train", self.data_dir, **self.options)
            train.augment = CropFlip(pad=2)
            torch.manual_seed(0)
            model = pb.models.build(self.name)
            settings = {"lr": 2e-3, "schedule": "cosine", "batch_size": 128, "progress": False}
            method, epochs = STARTS[self.name]
            pb.save(pb.fit(method, model, train, epochs=epochs, **settings), file)
        net = pb.load(file)
        assert isinstance(net, pb.Network)
        return net

    def measures(self, net: pb.Net) -> dict[str, float]:
        found = pb.evaluate(net, self.test, samples=1, batch_size=500)
        return {key: found[key] for key in KEPT if key in found}

    def given(self) -> None:
        if f"{self.name}, as it was" not in self.rows:
            size = pb.save(self.net, self.work / "given.pocket")
            self.rows.keep(f"{self.name}, as it was", {"network": self.name, "bytes": size, **self.measures(self.net)})

    def rounded(self) -> None:
        """Measure plain rounding: 2^b steps per output channel, a float scale each, packed by lzma or zstd."""
        import zstandard

        packers = {"": lambda data: lzma.compress(data, preset=9), ", zstd": zstandard.ZstdCompressor(22).compress}
        layout = self.net.layout
        for bits in (5, 4, 3):
            whole, values, scales = [], [], 0
            for part in channels(layout, layout.read(self.net.to_module())):
                scale = part.abs().amax(1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
                whole.append((part / scale).round())
                values.append((whole[-1] * scale).flatten())
                scales += 4 * len(part)
            for suffix, pack in packers.items():
                size = sum(len(pack(part.to(torch.int8).numpy().tobytes())) for part in whole) + scales
                self.quantised(f"rounded to {bits} bits", suffix, values, size)

    def hqq(self) -> None:
        """Measure torchao's half-quadratic quantisation (Badri and Shaji 2023) in groups of 64 weights, if they fit."""
        from torchao.quantization.quant_primitives import _choose_qparams_and_quantize_affine_hqq as quantise

        layout = self.net.layout
        for bits in (4, 3, 2):
            values, size = [], 0.0
            for weight in layout.views(layout.read(self.net.to_module())):
                groups = weight.reshape(-1, GROUP) if weight.numel() % GROUP == 0 else weight.flatten(1)
                codes, scale, zero, _ = quantise(
                    groups, bits, groups.shape[1], compute_dtype=torch.bfloat16, device="cpu", raw_output=True
                )
                values.append(((codes - zero.float()) * scale.float()).flatten())
                packed = len(lzma.compress(codes.numpy().tobytes(), preset=9))
                size += min(packed, codes.numel() * bits / 8) + 2 * (scale.numel() + zero.numel())
            self.quantised(f"torchao HQQ, {bits} bits", "", values, int(size))

    def quantised(self, name: str, suffix: str, values: list[torch.Tensor], size: int) -> None:
        """Keep the row of other weights; a row that differs in the packing alone has the same measures."""
        full, model = f"{self.name}, {name}{suffix}", self.net.to_module()
        if full in self.rows:
            return
        self.net.layout.write(model, torch.cat(values))
        size += sum(4 * tensor.numel() for tensor in self.net.model.state_dict().values())
        same = self.rows.get(f"{self.name}, {name}")
        known = {key: same[key] for key in KEPT} if same else self.measures(classifier(model, pb.Deterministic()))
        self.rows.keep(full, {"network": self.name, "bytes": size, "bits": 8 * size / self.net.layout.size, **known})

    def coded(self, budget: int, seed: int, steps: int) -> None:
        name = f"{self.name}, {budget / 1000:g} kB, seed {seed}" + (f", {steps} steps" if steps else "")
        if name in self.rows:
            return
        augmented = {"augment": True} if steps and self.name in WEIGHTS else {}
        size = {} if steps else {"subset": CALIBRATION, "seed": seed}
        train = pb.data.load(self.data, "train", self.data_dir, **self.options, **augmented, **size)
        if steps and self.name not in WEIGHTS:
            train.augment = CropFlip(pad=2)
        val = pb.data.load(self.data, "train", self.data_dir, subset=VALIDATION, seed=100 + seed, **self.options)
        folder = self.work / f"{self.name}-{seed}-{steps}"
        start = time.process_time()
        found = pb.compress(
            self.net, train, val, max_bytes=budget, steps=steps, seed=seed, out=folder, samples=1, progress=False
        )
        seconds = time.process_time() - start
        file = self.work / "row.pocket"
        row = {"network": self.name, "budget": budget, "seed": seed, "steps": steps, "cpu_seconds": seconds}
        row |= {"bytes": found.save(file), "bits": found.chosen.bits, "how": dict(found.chosen.how)}
        self.rows.keep(name, row | self.measures(pb.load(file)))
        print(name, self.rows[name]["bytes"], self.rows[name]["accuracy"], flush=True)


def draw(rows: Rows, network: str = "resnet20") -> None:
    """Draw accuracy and calibrated NLL against bytes."""
    from measure import FIGURES
    from pocketbayes.reporting import figures
    from pocketbayes.reporting.figures.style import PALETTE, canvas

    own = [row for row in rows.values() if row["network"] == network]
    kinds = {
        "codes, no training": [row for row in own if row.get("steps") == 0],
        "codes, trained": [row for row in own if row.get("steps")],
        "rounded per channel, or HQQ": [row for row in own if "bits" in row and "steps" not in row],
    }
    (whole,) = [row for row in own if "bits" not in row]
    figure, axes = canvas(1, 2)
    for panel, measure in zip(axes[0], ("accuracy", "calibrated_nll")):
        for number, (label, points) in enumerate(kinds.items()):
            if not points:
                continue
            points.sort(key=lambda row: row["bytes"])
            places = [row["bytes"] / 1000 for row in points], [row[measure] for row in points]
            panel.plot(*places, "o", color=PALETTE[number], markersize=4, label=label)
        panel.axhline(whole[measure], color=PALETTE[6], linestyle="--", linewidth=0.8, label="float network, 915 kB")
        panel.set_xlabel("file (kB)")
        panel.set_ylabel(measure.replace("_", " ").replace("nll", "NLL"))
    axes[0, 0].legend(fontsize=7, frameon=False)
    figures.save(figure, FIGURES / "pocket-codes.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(BUDGETS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--budgets", type=int, nargs="*", help="In place of the usual ones.")
    parser.add_argument("--work", type=Path, help="Keeps sweeps and trained networks, to resume from.")
    parser.add_argument("--figure", action="store_true", help="Draw the rows that are done, and nothing else.")
    args = parser.parse_args()
    if args.figure:
        return draw(Rows(NAME))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        work = args.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        rows = Rows(NAME, {"calibration": CALIBRATION, "validation": VALIDATION})
        for name in args.only:
            bench = Bench(name, args.data_dir, work, rows)
            bench.given()
            bench.rounded()
            bench.hqq()
            for seed in args.seeds:
                for budget in args.budgets or (TUNED if args.steps else BUDGETS)[name]:
                    bench.coded(budget, seed, args.steps)


if __name__ == "__main__":
    main()
