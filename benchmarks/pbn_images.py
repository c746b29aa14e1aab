"""The sections of pbn.py on larger images: CIFAR-10 from pretrained weights, and CamVid."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

import pocketbayes as pb
from networks import classifier, pretrained_resnet20
from pocketbayes.data.dataset import Images
from pocketbayes.data.shift import corrupt

KEPT = ("accuracy", "nll", "brier", "ece")

# -- CIFAR-10 -----------------------------------------------------------------------------------------------------

CIFAR: dict[str, Any] = {
    "model": "resnet20 from given weights",
    "steps": 100,
    "training": {"lr": 1e-4, "std_lr": 1e-3, "schedule": "cosine"},
    "training from a random start": {"lr": 3e-3, "schedule": "cosine"},
    "batch": 128,
    "pbn": {"train_samples": 1, "sensitivity_batches": 20},
    "rho_mean at 1 %": -3.5,
    "rho_mean at other rates": -4.0,
    "samples": 5,
    "steps between points of a curve": 20,
    "images per point of a curve": 500,
    "images that settings were chosen on": 1000,
    "corruptions": ["gaussian_noise", "defocus_blur", "fog", "jpeg_compression"],
    "severities": [1, 3, 5],
    "corrupted images": 300,
}


def cifar(bench: Any) -> None:
    """Measure two rates and the pretrained network, then convergence."""
    pictures = _Pictures(bench)
    given = pictures.given()
    bench.row("deterministic", lambda: pictures.measures(given))
    for name, rate in (("PBN 1%", 0.01), ("PBN 5%", 0.05), ("VI", 1.0), ("deterministic, trained on", 0.0)):
        bench.row(name, lambda name=name, rate=rate: pictures.trained(name, rate, given))
    fresh = pictures.fresh()
    for name, rate in (("PBN 5%, random start", 0.05), ("VI, random start", 1.0)):
        bench.row(name, lambda name=name, rate=rate: pictures.trained(name, rate, fresh))


class _Pictures:
    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.train = bench.load("cifar10", "train", augment=True, mean="imagenet")
        test, chosen = bench.load("cifar10", "test", mean="imagenet"), CIFAR["images that settings were chosen on"]
        self.seen, self.test = test.take(torch.arange(chosen)), test.take(torch.arange(chosen, len(test)))

    def given(self) -> Any:
        model = pretrained_resnet20(self.bench.data_dir / "weights" / "resnet20-12fca82f.th")
        return classifier(model, pb.Deterministic())

    def fresh(self) -> Any:
        torch.manual_seed(0)
        return pb.models.build("resnet20")

    def trained(self, name: str, rate: float, start: Any) -> dict[str, Any]:
        """Train briefly, with measurements during training and, from pretrained weights, at the end."""
        random_start = not isinstance(start, pb.Network)
        batch, every = CIFAR["batch"], CIFAR["steps between points of a curve"]
        sampler = RandomSampler(self.train, num_samples=batch * every, generator=torch.Generator().manual_seed(0))
        loader = DataLoader(self.train, batch, sampler=sampler, collate_fn=pb.data.collate)
        points = self.seen.take(torch.arange(CIFAR["images per point of a curve"]))
        first = CIFAR["rho_mean at 1 %" if rate == 0.01 else "rho_mean at other rates"]  # few weights, larger stds
        method = pb.PBN(rate=rate, rho_mean=first, pretrain_epochs=0, **CIFAR["pbn"])
        folder = self.bench.work / name.replace(" ", "-").replace("%", "").replace(",", "")
        training = CIFAR["training from a random start" if random_start else "training"]
        net = pb.fit(
            method, start, loader, val=points, epochs=CIFAR["steps"] // every, out=folder, val_samples=3,
            checkpoint_epochs=1000, progress=False, **training,
        )  # fmt: skip
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        row: dict[str, Any] = {
            "curve": [
                {"step": every * line["epoch"], "accuracy": line["val_accuracy"], "nll": line["val_nll"]}
                for line in lines
                if "val_nll" in line
            ]
        }
        return row if random_start else {**self.measures(net), **row}

    def measures(self, net: Any) -> dict[str, Any]:
        found = pb.evaluate(net, self.test, samples=CIFAR["samples"], batch_size=500)
        row: dict[str, Any] = {key: found[key] for key in KEPT}
        row["trainable"] = pb.census(net).trainable
        if isinstance(net.posterior, pb.posteriors.Partial):
            row["fractions"] = net.posterior.fractions()
        row["corrupted"] = {str(severity): self.corrupted(net, severity) for severity in CIFAR["severities"]}
        return row

    def corrupted(self, net: Any, severity: int) -> dict[str, float]:
        """Return metrics over all corruptions, and the entropy of correct and of wrong predictions."""
        some = self.test.take(torch.arange(CIFAR["corrupted images"]))
        pixels = some.images.permute(0, 2, 3, 1).numpy()
        parts: list[Tensor] = []
        labels = some.labels
        for name in CIFAR["corruptions"]:
            changed = torch.from_numpy(corrupt(pixels, name, severity)).permute(0, 3, 1, 2)
            x = Images(changed, labels, some.info, some.normalise, None).__getitems__(range(len(labels)))[0]
            parts.append(pb.predict(net, x, CIFAR["samples"], batch_size=500).mean)
        probs, labels = torch.cat(parts), labels.repeat(len(parts))
        found = pb.metrics.Classification(10)
        found.update(probs, labels)
        entropy, right = torch.special.entr(probs).sum(1), probs.argmax(1) == labels
        return {key: found.compute()[key] for key in KEPT} | {
            "entropy, right": float(entropy[right].mean()),
            "entropy, wrong": float(entropy[~right].mean()),
        }


# -- CamVid -------------------------------------------------------------------------------------------------------

CAMVID: dict[str, Any] = {
    "model": "unet-small (16, 32, 64, 128)",
    "size": [72, 96],
    "epochs": 40,
    "epochs of PBN after them": 15,
    "members": 3,
    "training": {"batch_size": 8, "lr": 3e-3, "schedule": "cosine"},
    "pbn": {"rate": 0.01, "train_samples": 1},
    "samples": 10,
    "loss": "cross-entropy, weights 1 / ln(1.02 + frequency)",
}


def camvid(bench: Any) -> None:
    """Measure deterministic, ensemble, PBN at 1 % and VI, with IoU per class."""
    size = tuple(CAMVID["size"])
    train, test = (bench.load("masks", split, path="camvid", size=size, augment=True) for split in ("train", "test"))
    plain = bench.load("masks", "train", path="camvid", size=size)
    likelihood = pb.Categorical(pb.data.class_weights(plain), ignore_index=train.info.ignore_index)
    torch.manual_seed(0)
    model = pb.models.build("unet-small", classes=train.info.classes)
    epochs, more = CAMVID["epochs"], CAMVID["epochs of PBN after them"]

    def fit(method: pb.Method, start: Any, epochs: int) -> Any:
        return pb.fit(
            method, start, train, epochs=epochs, likelihood=likelihood, progress=False, **CAMVID["training"]
        )  # fmt: skip

    def measured(net: Any) -> dict[str, Any]:
        found = pb.evaluate(net, test, samples=CAMVID["samples"], batch_size=20)
        kept = {key: value for key, value in found.items() if key in (*KEPT, "entropy", "miou") or key[:3] == "iou"}
        return kept | {"trainable": pb.census(net).trainable}

    ensemble = bench.trained("ensemble", lambda: fit(pb.Ensemble(members=CAMVID["members"]), model, epochs))
    start = ensemble.networks[0]
    bench.row("deterministic", lambda: measured(start))
    bench.row("ensemble", lambda: measured(ensemble))
    nets = {
        "PBN 1%": lambda: fit(pb.PBN(**CAMVID["pbn"]), start, more),
        "deterministic, trained on": lambda: fit(pb.PBN(**{**CAMVID["pbn"], "rate": 0.0}), start, more),
        "VI": lambda: fit(pb.PBN(**{**CAMVID["pbn"], "rate": 1.0, "pretrain_epochs": 0}), model, epochs + more),
    }
    for name, make in nets.items():
        bench.row(name, lambda name=name, make=make: measured(bench.trained(name.replace(" ", "-"), make)))
