"""Active learning on the digits: which images are worth a label? Those that the networks disagree on (BALD), or any.

python active.py [--rounds 8] [--seeds 3]

Starts from 20 labelled images and buys 20 more a round: by mutual information between answer and weights
(`Prediction.epistemic`; Houlsby et al. 2011), or at random. Prints the accuracy on test images after each round.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import Tensor

import pocketbayes as pb

FIRST, MORE = 20, 20


def fitted(model: torch.nn.Module, x: Tensor, y: Tensor, seed: int) -> pb.Network:
    """A network trained from the start on the labels so far, in steps that do not depend on their number."""
    epochs = max(1, 6000 // len(x))
    method = pb.MeanFieldVI(beta=0.1, prior_std=1.0, std_init=0.1)
    return pb.fit(method, model, (x, y), epochs=epochs, batch_size=32, lr=1e-2, seed=seed, progress=False)


def run(acquire: str, rounds: int, seed: int) -> list[float]:
    """Accuracy after each round."""
    pool, test = pb.data.load("digits", "train", val_fraction=0.0), pb.data.load("digits", "test")
    x, y = pool[:]
    torch.manual_seed(seed)
    model = pb.models.build("mlp", in_features=64, hidden=[100], out_features=10)
    order = torch.randperm(len(x))
    known, others = order[:FIRST], order[FIRST:]
    accuracy = []
    for _ in range(rounds):
        net = fitted(model, x[known], y[known], seed)
        accuracy.append(pb.evaluate(net, test)["accuracy"])
        if acquire == "bald":
            others = others[pb.predict(net, x[others]).epistemic.argsort(descending=True)]
        known, others = torch.cat([known, others[:MORE]]), others[MORE:]
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("labels    ", *(f"{FIRST + MORE * number:6}" for number in range(arguments.rounds)))
    for acquire in ("random", "bald"):
        runs = [run(acquire, arguments.rounds, seed) for seed in range(arguments.seeds)]
        print(f"{acquire:10}", *(f"{statistics.fmean(each):6.3f}" for each in zip(*runs)), flush=True)


if __name__ == "__main__":
    main()
