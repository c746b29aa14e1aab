"""VDP++ beside its full-covariance ancestor, Bayes by Backprop and a deterministic network.

python benchmarks/vdp.py --data-dir DATA --weights resnet20-12fca82f.th [--only mnist;cifar10;vit]

- mnist: LeNet-5, five seeds. A deterministic network is trained for two epochs on 10 000 images; from it each method
  goes on for one more epoch, on the same images. Full covariance takes a third of a second an image and step: it sees
  256 images, and its accuracy is that of its mean. Accuracy with ANOVA, pruning, noise, explanations.
- cifar10: ResNet-20 from the given weights, VDP++ for 50 steps on 6 400 augmented images.
- vit: a ViT-Ti on MNIST, VDP++ after deterministic training: its variance under noise.

Each finished row is written to results/vdp.json at once, and a row that is there is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

import pocketbayes as pb
from measure import Rows
from networks import classifier, given_resnet20, trained_vit
from pocketbayes.inference import curves, explain, statistics

SEEDS = range(5)
KEPT = ("accuracy", "nll", "ece", "brier", "count")
IMAGES = 10_000
SETTINGS = {"batch_size": 64, "lr": 1e-3, "progress": False}
METHODS: dict[str, pb.Method] = {
    "map": pb.Deterministic(),
    "bbb": pb.MeanFieldVI(std_init=0.02, beta=0.1),
    "vdp": pb.VDP(std_init=0.02, beta=0.1),
    "vdp-full": pb.FullCovarianceVDP(std_init=0.02, beta=0.1),
}
PREDICTED = {"map": "mean", "bbb": "sample", "vdp": "moments", "vdp-full": "mean"}
"""How each answers; full covariance at its mean, but for the variances below."""
FULL_IMAGES = {"train": 256, "noise": 32}


class Bench:
    """The data and the rows that are done."""

    def __init__(self, data_dir: Path, weights: Path) -> None:
        self.data_dir, self.weights = data_dir, weights
        self.rows = Rows("vdp")

    def images(self, data: str, split: str, **options: Any) -> Any:
        mean = {"mean": "imagenet"} if data == "cifar10" else {}
        return pb.data.load(data, split, self.data_dir, val_fraction=0.0, **mean, **options)

    # -- MNIST --------------------------------------------------------------------------------------------------------

    def mnist(self) -> None:
        for seed in SEEDS:
            names = {method: f"mnist, {method}, seed {seed}" for method in METHODS}
            if all(name in self.rows for name in names.values()):
                continue
            start = self.first_network(seed)
            for method, name in names.items():
                if name not in self.rows:
                    self.rows.keep(name, self.mnist_row(method, self.trained(method, start, seed), seed))
        self.tests()

    def first_network(self, seed: int) -> pb.Network:
        torch.manual_seed(seed)
        train = self.images("mnist", "train", subset=IMAGES)
        net = pb.fit("map", pb.models.build("lenet5"), train, epochs=2, seed=seed, **SETTINGS)
        assert isinstance(net, pb.Network)
        return net

    def trained(self, method: str, start: pb.Network, seed: int) -> pb.Network:
        full = method == "vdp-full"
        train = self.images("mnist", "train", subset=FULL_IMAGES["train"] if full else IMAGES)
        settings = {**SETTINGS, "batch_size": 16} if full else SETTINGS
        net = pb.fit(METHODS[method], start, train, epochs=1, seed=seed, **settings)
        assert isinstance(net, pb.Network)
        return net

    def mnist_row(self, method: str, net: pb.Network, seed: int) -> dict[str, Any]:
        how = {"propagation": PREDICTED[method], "samples": 10}
        test = self.images("mnist", "test")
        row = {key: value for key, value in pb.evaluate(net, test, **how).items() if key in KEPT}
        row["pruning"] = pruning(method, net, test.take(torch.arange(2000)))
        if method != "vdp-full":
            row["noise"] = curves.noise_curve(net, test.take(torch.arange(1000)), **how)
        elif seed == 0:
            few = test.take(torch.arange(FULL_IMAGES["noise"]))
            row["noise"] = curves.noise_curve(net, few, propagation="moments-full")
            row["noise at the mean"] = curves.noise_curve(net, test.take(torch.arange(1000)), propagation="mean")
        if seed == 0:
            row |= self.explanations(net, how)
        return row

    def explanations(self, net: pb.Network, how: dict[str, Any]) -> dict[str, list[float]]:
        x = self.images("mnist", "test").__getitems__(range(50))[0]
        settings = {**how, "samples": 5}
        return {
            "infidelity": explain.infidelity(net, x, **settings).tolist(),
            "sensitivity-max": explain.sensitivity_max(net, x, **settings).tolist(),
        }

    def tests(self) -> None:
        """ANOVA over seeds, paired t-tests of the explanations, and how the curves of variance agree."""
        accuracy = {m: [self.rows[f"mnist, {m}, seed {s}"]["accuracy"] for s in SEEDS] for m in METHODS}
        fair = {method: values for method, values in accuracy.items() if method != "vdp-full"}
        tests = {"same training": statistics.anova(fair), "full covariance included": statistics.anova(accuracy)}
        first = {m: self.rows[f"mnist, {m}, seed 0"] for m in METHODS}
        pairs = {
            f"{measure}: {method} against map": vars(statistics.paired_t(first[method][measure], first["map"][measure]))
            for measure in ("infidelity", "sensitivity-max")
            for method in ("bbb", "vdp", "vdp-full")
        }
        variance = {m: [row["variance"] for row in first[m]["noise"]] for m in ("vdp", "vdp-full")}
        self.rows.keep(
            "mnist, tests",
            {
                "anova": {name: {"f": test.f, "p": test.p} for name, test in tests.items()},
                "paired t": pairs,
                "spearman of variance over dB, vdp and vdp-full": float(spearmanr(*variance.values())[0]),
            },
        )

    # -- CIFAR-10 -----------------------------------------------------------------------------------------------------

    def cifar10(self) -> None:
        model = given_resnet20(self.weights)
        test = self.images("cifar10", "test")
        nets: dict[str, Any] = {
            "map": lambda: classifier(model, pb.Deterministic()),
            "vdp": lambda: self.resnet(model),
        }
        for method, make in nets.items():
            name = f"cifar10, {method}"
            if name in self.rows:
                continue
            net = make()
            how = {"propagation": PREDICTED[method]}
            row: dict[str, Any] = {k: v for k, v in pb.evaluate(net, test, **how).items() if k in KEPT}
            few = test.take(torch.arange(500))
            row["pruning"] = pruning(method, net, few)
            row["noise"] = curves.noise_curve(net, few, **how)
            self.rows.keep(name, row)

    def resnet(self, model: torch.nn.Module) -> pb.Network:
        method = pb.VDP(std_init=0.005, prior="pretrained", prior_std=0.1, beta=0.01)
        train = self.images("cifar10", "train", augment=True, subset=6400)
        net = pb.fit(method, model, train, epochs=1, batch_size=128, lr=1e-4, std_lr=1e-2, progress=False)
        assert isinstance(net, pb.Network)
        return net

    # -- a vision transformer -----------------------------------------------------------------------------------------

    def vit(self) -> None:
        if "mnist, vit-ti, vdp" in self.rows:
            return
        first = trained_vit(self.images("mnist", "train", subset=IMAGES))
        few = self.images("mnist", "train", subset=1600)
        net = pb.fit(pb.VDP(std_init=1e-3, beta=0.01), first, few, epochs=1, batch_size=32, lr=1e-5, progress=False)
        test = self.images("mnist", "test", subset=1000)
        measures = pb.evaluate(net, test)
        row: dict[str, Any] = {key: measures[key] for key in KEPT}
        row["noise"] = curves.noise_curve(net, test.take(torch.arange(300)))
        self.rows.keep("mnist, vit-ti, vdp", row)


def pruning(method: str, net: pb.Network, data: Any) -> dict[str, Any]:
    """Accuracy by fraction pruned; without stds there is no signal-to-noise ratio."""
    criteria = ("magnitude",) if method == "map" else ("magnitude", "snr")
    return {by: curves.pruning_curve(net, data, by=by, propagation="mean") for by in criteria}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="a checkpoint of ResNet-20 trained on CIFAR-10")
    parser.add_argument("--only", default="cifar10;mnist;vit", help="parts, separated by semicolons")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(arguments.data_dir, arguments.weights)
    for part in arguments.only.split(";"):
        {"mnist": bench.mnist, "cifar10": bench.cifar10, "vit": bench.vit}[part]()


if __name__ == "__main__":
    main()
