"""Everything that an interrupted run needs to go on bit for bit."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pocketbayes import container
from pocketbayes.training import Plateau

KIND = "checkpoint"
FILE = "checkpoint.safetensors"


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        stage: The number of the stage.
        begun: Whether the stage's `begin` is done.
        epoch: Epochs of the stage that are over.
        step: Steps of the current epoch that are over.
        sums: The current epoch's sums of loss, NLL and KL over its steps.
        lines: Lines of the metrics file that are final.
        plateau: The state of the plateau schedule.
        best: The lowest validation NLL of the stage.
    """

    stage: int = 0
    begun: bool = False
    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    lines: int = 0
    plateau: Plateau = field(default_factory=Plateau)
    best: float = float("inf")


def write(folder: Path, progress: Progress, tree: dict[str, Any]) -> None:
    """Writes a checkpoint in place of the one before."""
    container.write(folder / FILE, {"progress": asdict(progress), **tree}, KIND)


def read(folder: Path) -> tuple[Progress, dict[str, Any]] | None:
    """The checkpoint of a folder, or None if there is none yet."""
    if not (folder / FILE).exists():
        return None
    tree = container.read(folder / FILE, KIND)
    plain = tree.pop("progress")
    return Progress(**{**plain, "plateau": Plateau(**plain["plateau"])}), tree


def random_state() -> dict[str, Any]:
    """The generators of torch, numpy and Python."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global generator is what user code may use)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "python": [version, list(internal), gauss],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Sets what `random_state` read."""
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
