"""Compare our training steps and predictions with other libraries, relative to deterministic PyTorch.

python benchmarks/peers.py [--models lenet5,lenet300,resnet20,resnet18,vit-ti] [--section "training step"] [--threads 1]

The extra `bench` installs bayesian-torch, torch-uncertainty, blitz, IVON, fastbnns and laplace-torch together, so that
all of them run interleaved in one process. If a peer cannot run, its error message is recorded. Figures are medians of
CPU seconds, which with one thread also hold on a shared machine. Each finished model is written to results/peers.json;
other models and sections in the file are kept.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
from measure import Rows, interleaved, ratios
from peer_models import SAMPLED, STEPS, UNSAMPLED
from steps import Action, deterministic_step, without_gradients

SECTIONS = ("training step", "30 samples", "no samples")


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and the number of timings; 30 samples are timed a third as often."""

    batch: int
    shape: tuple[int, int, int] = (3, 32, 32)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 9

    def data(self) -> tuple[Tensor, Tensor]:
        return torch.randn(self.batch, *self.shape), torch.arange(self.batch) % 10


CASES = {
    "lenet5": Case(128, (1, 28, 28), rounds=61),
    "lenet300": Case(128, (1, 28, 28), rounds=61),
    "resnet20": Case(32),
    "resnet18": Case(8, settings={"classes": 10}, rounds=3),
    "vit-ti": Case(8, settings={"classes": 10, "image_size": 32, "patch_size": 4}, rounds=6),
}


def measure(name: str, sections: Collection[str]) -> dict[str, Any]:
    """Return times relative to deterministic PyTorch for each section, and what does not run."""
    case = CASES[name]
    torch.manual_seed(0)
    model = pb.models.build(name, **case.settings)
    x, y = case.data()
    plain = copy.deepcopy(model).eval()
    one_pass = without_gradients(lambda: plain(x))
    step = deterministic_step(copy.deepcopy(model).train(), x, y)
    plans: dict[str, tuple[Action, Mapping[str, Callable[..., Action]], tuple[Tensor, ...], int]] = {
        "training step": (step, STEPS, (x, y), case.rounds),
        "30 samples": (one_pass, SAMPLED, (x,), case.rounds // 3),
        "no samples": (one_pass, UNSAMPLED, (x,), case.rounds),
    }
    result: dict[str, Any] = {"batch": case.batch, "rounds": {}, "not run": {}}
    for section in sections:
        base, table, inputs, rounds = plans[section]
        actions = {"deterministic": base}
        for peer, make in table.items():
            copied = copy.deepcopy(model).train(section == "training step")
            action = tried(lambda make=make, copied=copied, inputs=inputs: make(copied, *inputs))
            if isinstance(action, str):
                result["not run"][f"{peer}: {section}"] = action
            else:
                actions[peer] = action
        times = interleaved(actions, rounds, warmup=0, clock=time.process_time)
        result[section], result["rounds"][section] = ratios(times, "deterministic"), rounds
    return result


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the old model's sections, updated with the new ones."""
    kept = {key: why for key, why in old.get("not run", {}).items() if key.rpartition(": ")[2] not in new}
    rounds = {**old.get("rounds", {}), **new["rounds"]}
    return {**old, **new, "rounds": rounds, "not run": {**kept, **new["not run"]}}


def tried(make: Callable[[], Action]) -> Action | str:
    """Return the action after a first run, or a one-line reason why it does not run."""
    try:
        action = make()
        action()
        return action
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--section", choices=SECTIONS, action="append")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # the peers' own
    for name in arguments.models.split(","):
        measured = measure(name, arguments.section or SECTIONS)
        models = Rows("peers", key="models", order=CASES)  # read again, since others may have been measured meanwhile
        models.keep(name, merged(models.get(name, {}), measured))


if __name__ == "__main__":
    main()
