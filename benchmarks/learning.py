"""Measure whether stds learn and whether it helps: defaults, ablations and controls, on validation or test data.

    python benchmarks/learning.py --seeds 3 digits lenet5 lenet300

Rows are written to `results/learning.json`; finished rows are not run again. MNIST networks train on 10 000 (LeNet-5)
or 20 000 images (LeNet-300-100) and are measured on the 10 000 test images. Out-of-distribution data are 1000 images of
Fashion-MNIST, and uniform noise for digits. The rows of validation data are the ablation that decided the defaults.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.base.atomic import write_atomically
from pocketbayes.inference.metrics import ood_scores
from pocketbayes.inference.metrics.accumulators import Classification
from pocketbayes.inference.metrics.tempered import Tempered
from pocketbayes.methods import make

RESULTS = Path(__file__).parent / "results" / "learning.json"
DOCS = Path(__file__).parent.parent / "docs" / "learning.md"
MARKS = ("<!-- tables by benchmarks/learning.py --docs -->", "<!-- end of tables -->")
COLUMNS = (
    "accuracy", "NLL", "calibrated NLL", "over map", "epistemic share", "on OOD", "OOD AUROC", "over map",
    "by information",
    "std rank correlation", "movement", "learned", "seeds",
)  # fmt: skip
SAMPLES = 20
Pair = tuple[Tensor, Tensor]

METHODS: dict[str, dict[str, Any]] = {
    "map": {},
    "bbb": {},
    "lrt": {},
    "flipout": {},
    "ivon": {},
    "vdp": {},
    "pbn": {"train_samples": 1},
    "ssvi": {"density": 0.5},
    "2dgbnn": {"meanfield_epochs": 3},
}
"""Settings of the methods that are not their defaults."""
RATES: dict[str, dict[str, float]] = {
    "digits": {"map": 6e-3, "pbn": 6e-3, "ivon": 1.0},
    "lenet5": {"ivon": 0.5},
    "lenet300": {"ivon": 0.3},
}
"""The best learning rate of a method on validation data, where it is not that of the case."""
PROTOCOLS = ("defaults", "defaults without averaging", "best rate")
"""All defaults of `fit`; the same, but the last step instead of the average; or the best learning rate on validation
data, with a cosine schedule and without averaging."""
SCORES: dict[str, Callable[[pb.Prediction], Tensor]] = {
    "": lambda answer: answer.entropy,
    "_information": lambda answer: answer.epistemic,
    "_max_probability": lambda answer: 1 - answer.mean.max(1).values,
}
"""Scores for out-of-distribution detection: entropy is the main one, the others are also reported."""
CONTROL = "map + constant std"
CONTROL_SCALE = 0.2
"""The constant std of the control row, in units of each layer's weights."""


def mnist(images: int) -> tuple[Pair, Pair, Tensor]:
    train, held = (pb.data.load("mnist", split=split) for split in ("train", "test"))
    fashion = pb.data.load("fashion-mnist", split="test")
    return _arrays(train, images), _arrays(held, 10_000), _arrays(fashion, 1000)[0]


def digits(images: int) -> tuple[Pair, Pair, Tensor]:
    x, y = _arrays(pb.data.load("digits", split="train", val_fraction=0.3), images)
    held = _arrays(pb.data.load("digits", split="test", val_fraction=0.3), 10_000)
    noise = torch.rand(500, *x.shape[1:], generator=torch.Generator().manual_seed(0)) * (x.max() - x.min()) + x.min()
    return (x, y), held, noise


CASES: dict[str, dict[str, Any]] = {
    "digits": {"data": digits, "images": 1000, "epochs": 30, "batch_size": 64, "lr": 1e-2},
    "lenet5": {"data": mnist, "images": 10_000, "epochs": 10, "batch_size": 128, "lr": 3e-3},
    "lenet300": {"data": mnist, "images": 20_000, "epochs": 10, "batch_size": 128, "lr": 3e-3},
}


def _arrays(data: Any, most: int) -> Pair:
    pairs = [data[i] for i in range(min(len(data), most))]
    return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.tensor([int(y) for _, y in pairs])


def build(case: str, example: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if case == "digits":
        return pb.models.build("mlp", in_features=example[0].numel(), out_features=10, hidden=[64])
    return pb.models.build(case)


def train(case: str, name: str, data: Pair, seed: int, protocol: str) -> pb.Network:
    settings, given = METHODS[name], CASES[case]
    training = {key: given[key] for key in ("epochs", "batch_size")}
    if name in ("pbn", "2dgbnn"):
        settings = {**settings, "pretrain_epochs": given["epochs"] // 2}
        training["epochs"] = given["epochs"] // 2
    if protocol != "defaults":
        training["average"] = False
    if protocol == "best rate":
        training |= {"lr": RATES[case].get(name, given["lr"]), "schedule": "cosine"}
    net = pb.fit(make(name, **settings), build(case, data[0], seed), data, seed=seed, progress=False, **training)
    assert isinstance(net, pb.Network)
    return net


def with_constant_std(plain: pb.Network) -> pb.Network:
    net = pb.bayesianize(plain, "bbb", std_init="relative", std_scale=CONTROL_SCALE)
    assert isinstance(net, pb.Network)
    net.likelihood = pb.Categorical()
    return net


def measure(net: pb.Network, held: Pair, other: Tensor) -> dict[str, Any]:
    inside, outside = (pb.predict(net, x, samples=SAMPLES) for x in (held[0], other))
    plain, tempered = Classification(inside.mean.shape[1]), Tempered(inside.mean.shape[1])
    plain.update(inside.mean, held[1])
    tempered.update(inside.mean, held[1])
    found = {**plain.compute(), **tempered.compute()}
    information, information_outside = (float(answer.epistemic.mean()) for answer in (inside, outside))
    return {
        **{key: round(found[key], 5) for key in ("accuracy", "nll", "ece", "calibrated_nll", "calibrated_ece")},
        "epistemic_share": round(information / float(inside.entropy.mean()), 5),
        "ood_epistemic_share": round(information_outside / float(outside.entropy.mean()), 5),
        "ood_information_ratio": round(information_outside / information, 3) if information > 0 else None,
        **{f"ood_auroc{suffix}": round(_auroc(inside, outside, score), 5) for suffix, score in SCORES.items()},
        "health": asdict(pb.health(net)),
    }


def _auroc(inside: pb.Prediction, outside: pb.Prediction, score: Callable[[pb.Prediction], Tensor]) -> float:
    return ood_scores(score(inside), score(outside))["auroc"]


def write_docs(rows: list[dict[str, Any]]) -> None:
    """Write the tables of docs/learning.md between their marks."""
    tables = []
    for protocol, case in itertools.product(PROTOCOLS, CASES):
        chosen = [row for row in rows if (row["case"], row.get("protocol")) == (case, protocol)]
        if chosen:
            lines = [f"**{case}, {protocol}**", "", "| | " + " | ".join(COLUMNS) + " |"]
            names = [name for name in ("map", CONTROL, *METHODS) if any(row["row"] == name for row in chosen)]
            lines += ["|---|" + "---:|" * len(COLUMNS), *(_line(name, chosen) for name in dict.fromkeys(names))]
            tables.append("\n".join(lines))
    tables.append(_ablation([row for row in rows if row["judged_by"] == "validation"]))
    text = DOCS.read_text()
    before, _, rest = text.partition(MARKS[0])
    DOCS.write_text(before + MARKS[0] + "\n" + "\n\n".join(tables) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])


def _ablation(rows: list[dict[str, Any]]) -> str:
    """Return calibrated NLL and AUROC of each choice over those of map at its best rate, by case."""
    lines = ["**validation data**", "", "| calibrated NLL over map, AUROC over map | " + " | ".join(CASES) + " |"]
    lines.append("|---|" + "---:|" * len(CASES))
    for name in dict.fromkeys(row["row"] for row in rows if row["row"] != "map"):
        cells = []
        for case in CASES:
            own = [row for row in rows if (row["case"], row["row"]) == (case, name)]
            seeds = {row["seed"] for row in own}
            plain = [row for row in rows if (row["case"], row["row"]) == (case, "map") and row["seed"] in seeds]
            if not own:
                cells.append("")
                continue
            ratio = sum(row["calibrated_nll"] for row in own) / sum(row["calibrated_nll"] for row in plain) - 1
            further = sum(row["ood_auroc"] for row in own) - sum(row["ood_auroc"] for row in plain)
            cells.append(f"{100 * ratio:+.1f} %, {further / len(own):+.3f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _line(name: str, case: list[dict[str, Any]]) -> str:
    """Return a row of means over seeds; differences from map are those of the same seeds."""
    rows = [row for row in case if row["row"] == name]
    seeds = {row["seed"] for row in rows}
    plain = [row for row in case if row["row"] == "map" and row["seed"] in seeds]

    def mean(key: str, of: list[dict[str, Any]] = rows) -> float:
        return sum(row[key] for row in of) / len(of)

    ratio = mean("calibrated_nll") / mean("calibrated_nll", plain) - 1
    further = mean("ood_auroc") - mean("ood_auroc", plain)
    cells = [f"{100 * mean('accuracy'):.2f}", f"{mean('nll'):.4f}", f"{mean('calibrated_nll'):.4f}"]
    cells += ["" if name == "map" else f"{100 * ratio:+.1f} %", f"{100 * mean('epistemic_share'):.1f} %"]
    cells += [f"{100 * mean('ood_epistemic_share'):.1f} %", f"{mean('ood_auroc'):.3f}"]
    cells += ["" if name == "map" else f"{further:+.3f}"]
    known = name != "map" and all("ood_auroc_information" in row for row in rows)
    cells += [f"{mean('ood_auroc_information'):.3f}" if known else ""]
    health = [row["health"] for row in rows]
    if health[0]["learned"] is None:
        cells += ["-", "-", "-"]
    else:
        cells += [f"{mean(key, health):.2f}" for key in ("std_rank_correlation", "std_movement")]
        cells += [f"{sum(one['learned'] for one in health)} of {len(health)}"]
    return f"| {name} | " + " | ".join([*cells, str(len(rows))]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/learning.md")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", nargs="*", default=[CONTROL, *METHODS])
    parser.add_argument("--protocols", nargs="*", default=PROTOCOLS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further row after this time")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="stds not learned")
    rows, begun = json.loads(RESULTS.read_text()) if RESULTS.exists() else [], time.monotonic()
    loaded: dict[str, Any] = {}
    for case, seed, protocol, name in itertools.product(args.cases, range(args.seeds), args.protocols, args.rows):
        key = {"case": case, "row": name, "seed": seed, "judged_by": "test", "protocol": protocol}
        if any(all(known.get(k) == v for k, v in key.items()) for known in rows):
            continue
        if time.monotonic() - begun > args.seconds:
            break
        data, held, other = loaded.setdefault(case, None) or CASES[case]["data"](CASES[case]["images"])
        loaded[case] = data, held, other
        start = time.process_time()
        net = train(case, "map" if name == CONTROL else name, data, seed, protocol)
        if name == CONTROL:
            net = with_constant_std(net)
        seconds = round(time.process_time() - start, 1)
        rows.append({**key, **measure(net, held, other), "cpu_seconds": seconds, "samples": SAMPLES})
        text = json.dumps(rows, indent=1)
        write_atomically(RESULTS, lambda file, text=text: file.write(text.encode()))
        print(json.dumps(rows[-1]), flush=True)
    if args.docs:
        write_docs(rows)


if __name__ == "__main__":
    main()
