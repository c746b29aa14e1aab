"""Compare first stds of `lrt` and `bbb` on two UCI sets: log-likelihood on a fifth of the training data, held out.

python benchmarks/first_std.py [--data-dir DATA]

Model and training are those of the study `uci`, on the first split, with one seed. Rows are written to
results/first-std.json; finished rows are not run again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import warnings
from typing import Any

import torch

import pocketbayes as pb
import trial
from measure import Rows
from pocketbayes.methods import make

EPOCHS = {"energy": 60, "bostonHousing": 80}
TRAINING: dict[str, Any] = {"batch_size": 32, "lr": 1e-2, "schedule": "cosine"}
SCALES = {"lrt": (0.1, 0.3, 1.0), "bbb": (0.1, 0.3, 0.6)}
"""First stds in units of each layer's weights; the last one is the method's default."""
SAMPLES = 50


def measured(data: str, name: str, scale: float | None, data_dir: str | None) -> dict[str, Any]:
    """Train on four fifths of the training data, and measure on the rest."""
    train, held = (
        pb.data.load("uci", split, data_dir, set=data, index=0, val_fraction=0.2) for split in ("train", "val")
    )
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=train[0][0].numel(), out_features=1, hidden=[50])
    method = make(name, **({} if scale is None else {"std_scale": scale}))
    net = pb.fit(method, model, train, epochs=EPOCHS[data], seed=0, progress=False, **TRAINING)
    found = pb.evaluate(net, held, samples=SAMPLES)
    return {key: round(found[key], 4) for key in ("log_likelihood", "rmse")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    data_dir = parser.parse_args().data_dir
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="stds not learned")
    rows = Rows("first-std", {"settings": {"epochs": EPOCHS, "training": TRAINING, "samples": SAMPLES}})
    tried = {f"{name}, first std {scale}": (name, scale) for name, scales in SCALES.items() for scale in scales}
    for data, (row, method) in itertools.product(EPOCHS, {"map": ("map", None), **tried}.items()):
        trial.keep(rows, f"{data}: {row}", functools.partial(measured, data, *method, data_dir))


if __name__ == "__main__":
    main()
