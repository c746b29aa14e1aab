"""Coded ensembles of members trained here: five LeNet-5s on MNIST in fewer bytes than one in FP32.

python benchmarks/ensembles.py train --data-dir DATA --runs RUNS
python benchmarks/ensembles.py code --data-dir DATA --runs RUNS

`train` makes the members (resumable), `code` measures them at full precision and after `pb.compress`. Figures go to
results/ensembles.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb

MEMBERS = 5
TRAINING: dict[str, Any] = {"epochs": 5, "batch_size": 128, "lr": 3e-3, "schedule": "cosine"}


def train(data_dir: Path, runs: Path) -> None:
    data = pb.data.load("mnist", "train", data_dir, augment=True)
    torch.manual_seed(0)
    model = pb.models.build("lenet5")
    method = pb.Ensemble(members=MEMBERS)
    pb.fit(method, model, data, seed=0, out=runs / "mnist-lenet5", resume=True, progress=False, **TRAINING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=["train"])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/ensembles"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.data_dir, args.runs)


if __name__ == "__main__":
    main()
