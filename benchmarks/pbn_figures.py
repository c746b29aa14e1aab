"""Draw the figures of the PBN page from the JSON files in results/, and a row of images from the trained UNets.

python benchmarks/pbn_figures.py [--data-dir DATA --work FOLDER]

Without the folder of the benchmark's networks, the row of images is not redrawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pocketbayes as pb
from measure import Rows, draw
from paper_figures import partial, regression, segmentation
from pocketbayes.reporting.figures import evaluation
from table_parts import grouped, mean

CAMVID_CLASSES = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "person", "bicycle"]
CAMVID_NETWORKS = {"deterministic": "ensemble", "3-ensemble": "ensemble", "PBN 1%": "PBN-1%", "VI": "VI"}


def cubic() -> Any:
    rows = Rows("pbn-cubic")
    if not rows:
        return None
    data = rows["data"]
    curves = {name: (row["mean"], row["std"]) for name, row in rows.items() if "mean" in row}
    truth = [x**3 for x in data["grid"]]
    return regression.regression_bands(data["grid"], curves, (data["x"], data["y"]), truth, (-4, 4))


def rate_of(name: str) -> float | None:
    return int(name.removeprefix("PBN ").rstrip("%")) / 100 if name.startswith("PBN ") else None


def by_rate() -> Any:
    rows = Rows("pbn-mnist")
    if not rows:
        return None
    measures = {"Brier": "brier", "NLL": "nll", "AUROC": "auroc by entropy"}
    groups = grouped(rows)
    others = {name: group for name, group in groups.items() if rate_of(name) is None}
    curves, lines = {}, {}
    for title, key in measures.items():
        points = {rate_of(name): [r[key] for r in group] for name, group in groups.items() if rate_of(name)}
        curves[title] = points
        lines[title] = {name: [r[key] for r in group] for name, group in others.items()}
    return partial.measures_by_rate(curves, lines)  # type: ignore[arg-type]


def rotation() -> Any:
    rows = Rows("pbn-mnist")
    if not rows:
        return None
    shown = {}
    for name, group in grouped(rows).items():
        if rate_of(name) in (None, 0.05, 1.0):
            shown[name] = [
                {
                    "rotation (degrees)": int(angle),
                    **{key: mean([row["rotated"][angle] for row in group], key) for key in at},
                }
                for angle, at in group[0]["rotated"].items()
            ]
    return evaluation.shift_curves(shown, "rotation (degrees)")


def by_flops() -> Any:
    rows, cost = Rows("pbn-mnist"), Rows("pbn-cost")
    if not rows or not cost:
        return None
    settings = rows.document["settings"]
    before, after = settings["epochs"], settings["epochs of PBN after them"]
    counted = cost["lenet300, deterministic, 1 sample"]
    each = counted["passes, measured"] * counted["flops of a pass per example"] * 60_000
    passes = settings["pbn"]["train_samples"]
    epochs = {
        "deterministic": before + after,
        "ensemble": settings["members"] * before,
        "MC dropout": before + after,
        "VI, random start": passes * (before + after),
    }
    points = {}
    for name, group in grouped(rows).items():
        if rate_of(name) not in (None, 0.01, 0.05, 0.1, 1.0):
            continue
        cost_in_epochs = epochs.get(name, before + passes * after)
        points[name] = (each * cost_in_epochs, 100 * mean(group, "accuracy"))
    return partial.accuracy_by_flops(points)


def convergence() -> Any:
    curves = {name: row["curve"] for name, row in Rows("pbn-cifar").items() if "curve" in row}
    return partial.convergence(curves, ("accuracy", "nll")) if curves else None


def corruption() -> Any:
    rows = {name: row for name, row in Rows("pbn-cifar").items() if "corrupted" in row}
    if not rows:
        return None
    renamed = {"entropy, right": "entropy_right", "entropy, wrong": "entropy_wrong"}
    return evaluation.shift_curves(
        {
            name: [
                {"severity": int(severity), **{renamed.get(key, key): value for key, value in at.items()}}
                for severity, at in row["corrupted"].items()
            ]
            for name, row in rows.items()
        }
    )


def distributions() -> Any:
    row = Rows("pbn-weights").get("distributions, PBN 5%")
    if row is None:
        return None
    layers = {name: layer for name, layer in row.items() if isinstance(layer, dict)}
    return partial.weight_distributions(layers, ("PBN", "ensemble"))


def iou() -> Any:
    rows = Rows("pbn-camvid")
    if not rows:
        return None
    values = {name: [row.get(f"iou_{k}", 0.0) for k in range(len(CAMVID_CLASSES))] for name, row in rows.items()}
    return segmentation.iou_bars(values, CAMVID_CLASSES)


def pictures(data_dir: Path, work: Path) -> Any:
    settings = Rows("pbn-camvid").document["settings"]
    test = pb.data.load("masks", "test", data_dir, path="camvid", size=settings["size"])
    x, y = test[0]
    answers = {}
    for name, file in CAMVID_NETWORKS.items():
        net: Any = pb.load(work / "camvid" / f"{file}.pocket")
        found = pb.predict(net.networks[0] if name == "deterministic" else net, x[None], settings["samples"])
        answers[name] = (found.mean.argmax(1)[0].numpy(), found.entropy[0].numpy())
    image = x.permute(1, 2, 0).numpy() * test.info.std + test.info.mean
    return segmentation.segmentation_row(image.clip(0, 1), y.numpy(), answers, len(CAMVID_CLASSES))


FIGURES: dict[str, Callable[[], Any]] = {
    "pbn-cubic": cubic,
    "pbn-rates": by_rate,
    "pbn-rotation": rotation,
    "pbn-flops": by_flops,
    "pbn-convergence": convergence,
    "pbn-corruption": corruption,
    "pbn-weights": distributions,
    "pbn-iou": iou,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    drawn = dict(FIGURES)
    if arguments.work and Rows("pbn-camvid"):
        drawn["pbn-pictures"] = lambda: pictures(arguments.data_dir, arguments.work)
    draw(drawn)


if __name__ == "__main__":
    main()
