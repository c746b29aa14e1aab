"""Measure the baselines of a posterior: a pretrained ResNet-20 on CIFAR-10, a temperature, rounding, and plain noise.

python benchmarks/yardstick.py --data-dir DATA

Nothing is trained. Every row: accuracy, NLL and ECE as they are; NLL and ECE with a temperature fitted on the other
half of the test images; the deep ensemble equivalent on the curve of results/members.json; AUROC of three scores
against SVHN and CIFAR-100; the epistemic share of the entropy; the bytes of the file. The row "map + constant std"
draws every weight with a std of a tenth of its layer's, as a control for learned posteriors.

Rows are written to results/yardstick.json; finished rows are not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import pocketbayes as pb
from measure import RESULTS, write_result
from networks import pretrained_resnet20
from pocketbayes.files.packing import Precision
from pocketbayes.inference.metrics import Classification, calibrated_nll, dee, ood_scores, temperature
from pocketbayes.posteriors import MeanField

SAMPLES = 10
INT8, INT5 = (Precision(means=level, points="bfloat16") for level in ("int8", "int5"))
OUTSIDE = ("svhn", "cifar100")
CONSTANT_STD = 0.1
"""The control's std, relative to the std of each layer's weights."""


def pretrained(data_dir: Path) -> pb.Network:
    """Return the unchanged pretrained network."""
    net = pb.bayesianize(pretrained_resnet20(data_dir / "weights" / "resnet20-12fca82f.th"), "map")
    assert isinstance(net, pb.Network)
    return net


def noisy(net: pb.Network) -> pb.Network:
    """Return the network with one std for every weight of a layer."""
    mean = net.posterior.moments()[0].detach()
    std = torch.cat(
        [torch.full_like(view.flatten(), float(CONSTANT_STD * view.std())) for view in net.layout.views(mean)]
    )
    return pb.Network(net.to_module(), MeanField(net.layout, mean, std))


def rounded(net: pb.Network, precision: Precision) -> pb.Network:
    """Return the network after a round trip through a file of lower precision."""
    with tempfile.TemporaryDirectory() as folder:
        pb.save(net, Path(folder) / "net.pocket", precision=precision)
        again = pb.load(Path(folder) / "net.pocket")
    assert isinstance(again, pb.Network)
    return again


def file_bytes(net: pb.Network, precision: str | Precision) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return pb.save(net, Path(folder) / "net.pocket", precision=precision)


def rows(data_dir: Path) -> dict[str, tuple[Callable[[], pb.Network], str | Precision]]:
    """Return the function that makes each row's network, and the precision of its file."""
    return {
        "map": (lambda: pretrained(data_dir), "lossless"),
        "map, rounded to int8": (lambda: rounded(pretrained(data_dir), INT8), INT8),
        "map, rounded to int5": (lambda: rounded(pretrained(data_dir), INT5), INT5),
        "map + constant std": (lambda: noisy(pretrained(data_dir)), "lossless"),
    }


def calibrated_ece(probs: Tensor, labels: Tensor) -> float:
    """Compute the cross-fitted ECE: the temperature is fitted on the other half of the data."""
    log_probs = probs.double().clamp(min=1e-12).log()
    parts = torch.empty_like(log_probs)
    for fit, test in ((0, 1), (1, 0)):
        parts[test::2] = (log_probs[test::2] / temperature(log_probs[fit::2], labels[fit::2])).softmax(1)
    return figures_of(parts, labels)["ece"]


def figures_of(probs: Tensor, labels: Tensor) -> dict[str, float]:
    measures = Classification(probs.shape[1])
    measures.update(probs.float(), labels)
    return measures.compute()


def measure(net: pb.Network, data_dir: Path, curve: list[float]) -> dict[str, float]:
    """Measure one network on the test images and on both out-of-distribution data sets."""
    answers = {}
    for name in ("cifar10", *OUTSIDE):
        data = pb.data.load(name, "test", data_dir, mean="imagenet", **({} if name == "cifar10" else {"subset": 5000}))
        x, y = data[:]
        answers[name] = pb.predict(net, x, samples=SAMPLES)
        if name == "cifar10":
            labels = y
    own = answers["cifar10"]
    assert own.probs is not None
    found = {name: figures_of(own.probs, labels)[name] for name in ("accuracy", "nll", "ece")}
    found["calibrated_nll"] = calibrated_nll(own.probs, labels)
    found["calibrated_ece"] = calibrated_ece(own.probs, labels)
    found["dee"] = dee(found["calibrated_nll"], curve)
    found["epistemic_share"] = float(own.epistemic.sum() / own.entropy.sum())
    for name in OUTSIDE:
        other = answers[name]
        assert other.probs is not None
        scores = {
            "max_probability": (-own.probs.max(1).values, -other.probs.max(1).values),
            "entropy": (own.entropy, other.entropy),
            "mutual_information": (own.epistemic, other.epistemic),
        }
        for score, (inside, outside) in scores.items():
            found |= {f"{name}_{score}_{key}": ood_scores(inside, outside)[key] for key in ("auroc", "fpr95")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    curve = json.loads((RESULTS / "members.json").read_text())["curve"]
    path = RESULTS / "yardstick.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else {}
    for name, (make, precision) in rows(args.data_dir).items():
        if name not in known:
            net = make()
            known[name] = measure(net, args.data_dir, curve) | {"bytes": file_bytes(net, precision)}
            print(name, known[name], flush=True)
            about = {"network": "ResNet-20", "data": "CIFAR-10", "images": 10_000, "samples": SAMPLES, "seeds": 1}
            write_result("yardstick", {**about, "out_of_distribution_images": 5000, "rows": known})


if __name__ == "__main__":
    main()
