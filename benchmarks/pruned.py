"""VDP++ and a deterministic LeNet-5 with 90 % of the weights pruned: python benchmarks/pruned.py [--seeds 3].

Method and training follow the recipe mnist-lenet5-vdp-prunable, on the first 6000 training images, measured on all test
images. Both networks are pruned by global magnitude, without further training. Rows are written to results/pruned.json;
finished rows are not run again.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import pocketbayes as pb
from measure import Rows
from pocketbayes import recipes
from pocketbayes.inference import curves
from pocketbayes.inference.metrics import ood_scores

RECIPE = "mnist-lenet5-vdp-prunable"
IMAGES, TEST_IMAGES, OOD_IMAGES = 6000, 10_000, 2000
FRACTIONS = (0.0, 0.5, 0.8, 0.9, 0.95)


def row(name: str, seed: int, data: dict[str, Any]) -> dict[str, Any]:
    recipe = recipes.read(RECIPE)
    method = recipe.method.make() if name == "vdp" else pb.Deterministic()
    torch.manual_seed(seed)
    settings = {**recipe.training, "seed": seed, "progress": False}
    net = pb.fit(method, pb.models.build("lenet5"), data["train"], **settings)
    x, y = data["test"]
    inside, outside = (pb.predict(net, images).entropy for images in (x, data["ood"]))
    found = pb.evaluate(net, (x, y), progress=None)
    return {
        "accuracy by fraction pruned": curves.pruning_curve(net, (x, y), FRACTIONS, propagation="mean", progress=None),
        **{key: found[key] for key in ("accuracy", "nll", "ece", "calibrated_nll")},
        "ood_auroc": ood_scores(inside, outside)["auroc"],
        "learned": pb.health(net).learned,
    }


def pair(name: str, split: str, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = pb.data.load(name, split=split, val_fraction=0.0)
    x, y = images.__getitems__(range(most))
    return torch.as_tensor(x), torch.as_tensor(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows("pruned")
    data = {
        "train": pair("mnist", "train", IMAGES),
        "test": pair("mnist", "test", TEST_IMAGES),
        "ood": pair("fashion-mnist", "test", OOD_IMAGES)[0],
    }
    for seed in range(arguments.seeds):
        for name in ("vdp", "map"):
            key = f"{name}, seed {seed}"
            if key not in rows:
                rows.keep(key, row(name, seed, data))


if __name__ == "__main__":
    main()
