"""Train ensembles and code them: several networks in fewer bytes than one in FP32.

python benchmarks/ensembles.py train RECIPE --data-dir DATA [--runs RUNS]
python benchmarks/ensembles.py code RECIPE --data-dir DATA [--runs RUNS]

`train` runs a built-in recipe (resumable): mnist-lenet5-ensemble, cifar10-resnet-small-ensemble,
camvid-unet-small-ensemble, uci-energy-ensemble, digits-ensemble. `code` measures it on the test data: one member in
FP32 (the mean over all), all of them in FP32, and all of them in one coded file that is smaller than one FP32 network.
`pb.compress` chooses that file on the validation data, on which the disagreement of members is measured too. Results go
to results/ensembles.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import pocketbayes as pb
from measure import Rows
from pocketbayes import recipes
from pocketbayes.network import Mixture, members
from pocketbayes.recipes import Recipe, experiment

MEASURES = ("accuracy", "nll", "ece", "calibrated_nll", "miou", "rmse", "log_likelihood", "count")
MAX_BYTES = {"mnist-lenet5-ensemble": 206_000, "uci-energy-ensemble": 7500}
"""The size of a coded file, if it differs from that of one member in FP32."""


def train(recipe: Recipe, data_dir: Path, folder: Path) -> None:
    """Train the members, or resume their training."""
    experiment.run(recipe, folder, data_dir, resume=folder.exists(), measured=False, progress=False)


def measured(net: pb.Network | Mixture, data: Any) -> dict[str, float]:
    """Return the metrics of the table."""
    found = pb.evaluate(net, data, progress=False)
    return {name: found[name] for name in MEASURES if name in found}


def code(name: str, recipe: Recipe, data_dir: Path, folder: Path, rows: Rows) -> None:
    """Measure one member, all of them, and all of them coded."""
    train, val, test = (recipe.data.load(split, data_dir) for split in ("train", "val", "test"))
    net = pb.load(folder / "model.pocket")
    assert isinstance(net, Mixture)
    one = 4 * members(net)[0].census().values
    each = [measured(network, test) for network in net]
    whole = {"bytes": len(net) * one, **measured(net, test)}
    limit = MAX_BYTES.get(name, one)
    clock = time.process_time()
    found = pb.compress(net, train, val, max_bytes=limit, count=len(net), progress=False)
    coded = {"bytes": found.save(folder / "coded.pocket"), **measured(found.net, test)}
    if found.before.disagreement is not None:
        whole["disagreement"], coded["disagreement"] = found.before.disagreement, found.chosen.disagreement
    coded |= {"cpu_seconds": time.process_time() - clock, "max_bytes": limit, "lambda": found.chosen.how["lam"]}
    rows.keep(
        name,
        {
            "about": recipe.about,
            "members": len(net),
            "training": dict(recipe.training),
            "one": {"bytes": one, **{key: mean(row[key] for row in each) for key in each[0]}},
            "fp32": whole,
            "coded": coded,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=["train", "code"])
    parser.add_argument("recipe", choices=[name for name in recipes.names() if name.endswith("-ensemble")])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/ensembles"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipe, folder = recipes.read(args.recipe), args.runs / args.recipe
    if args.section == "train":
        train(recipe, args.data_dir, folder)
    else:
        code(args.recipe, recipe, args.data_dir, folder, Rows("ensembles", {"what": "members trained by our recipes"}))


if __name__ == "__main__":
    main()
