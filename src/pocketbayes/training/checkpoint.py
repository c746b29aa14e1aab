"""Checkpoints from which an interrupted run resumes bit for bit, and checks of their contents."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pocketbayes.base import atomic
from pocketbayes.base.errors import UserError, refusing, warn
from pocketbayes.base.randomness import current
from pocketbayes.base.run_folder import CHECKPOINT_FILE
from pocketbayes.files import container
from pocketbayes.training.settings import Plateau, SGDWithAdamStds

KIND = "checkpoint"
KEPT: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}
KEPT[SGDWithAdamStds] = KEPT[torch.optim.SGD]
"""Optimiser state per parameter after its first gradient."""
NEVER_NEGATIVE = ("step", "exp_avg_sq")
WORDS = 624
"""Number of words in numpy's Mersenne twister, whose position numpy does not check."""


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        stage: The number of the stage.
        begun: Whether the stage's `begin` is done.
        epoch: Finished epochs of the stage.
        step: Finished steps of the current epoch.
        sums: The current epoch's sums of loss, NLL and KL over its steps.
        lines: The number of final lines in the metrics file.
        plateau: The state of the plateau schedule.
        best: The lowest validation NLL of the stage.
        stale: Epochs since then.
    """

    stage: int = 0
    begun: bool = False
    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    lines: int = 0
    plateau: Plateau = field(default_factory=Plateau)
    best: float = float("inf")
    stale: int = 0


def files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    ages = {path: path.stem.partition("-")[2] for path in folder.glob("checkpoint-*.safetensors")}
    older = sorted((path for path in ages if ages[path].isdecimal()), key=lambda path: int(ages[path]))
    return [path for path in (folder / CHECKPOINT_FILE, *older) if path.is_file()]


def has_begun(folder: Path) -> bool:
    """Return whether a run, or a member trained as its own job, has a checkpoint in the folder."""
    return any(files(own) for own in (folder, *folder.glob("member-*")))


def write(folder: Path, progress: Progress, tree: dict[str, Any], kept: int = 1) -> None:
    """Write a checkpoint and keep the last `kept - 1` before it."""
    before = files(folder)
    with atomic.writing(folder / CHECKPOINT_FILE):
        for path in before[max(kept - 1, 0) :]:
            if path.name != CHECKPOINT_FILE:  # the newest is replaced atomically below
                path.unlink()
        for age, path in reversed(list(enumerate(before[: kept - 1], 1))):
            path.replace(folder / f"checkpoint-{age}.safetensors")
    container.write(folder / CHECKPOINT_FILE, {"progress": asdict(progress), **tree}, KIND)


def read(
    folder: Path, check: Callable[[Progress, dict[str, Any]], object] | None = None, *, remove: bool = False
) -> tuple[Progress, dict[str, Any]] | None:
    """Return the newest intact checkpoint of a folder, or None if there is none.

    Args:
        folder: The run folder.
        check: Called with the contents of a checkpoint; if it raises, the checkpoint counts as damaged.
        remove: Whether to remove newer damaged checkpoints, which would otherwise displace it at the next `write`.

    Raises:
        UserError: If all are damaged; the message names the last file and the reason.
    """
    found = files(folder)
    for number, path in enumerate(found, 1):
        try:
            with refusing(path, "a readable checkpoint"):
                progress, tree = _read(path)
                if check is not None:
                    check(progress, tree)
            for damaged in found[: number - 1] if remove else ():
                damaged.unlink(missing_ok=True)
            return progress, tree
        except UserError as error:  # noqa: PERF203 (a file each)
            if number == len(found):
                raise
            warn(f"{error}: resuming from the previous checkpoint")
    return None


def _read(path: Path) -> tuple[Progress, dict[str, Any]]:
    tree = container.read(path, KIND)
    if lacking := {"net", "optimizer", "random", "best"} - tree.keys():
        raise ValueError(f"it has no {min(lacking)!r}")
    plain = tree.pop("progress")
    return Progress(**{**plain, "plateau": Plateau(**plain["plateau"])}), tree


def random_state() -> dict[str, Any]:
    """Return the state of this thread's generators and of numpy's and Python's."""
    own = current()
    cuda = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global generator is what user code may use)
    return {
        "torch": torch.get_rng_state() if own is None else own.on("cpu").get_state(),
        "cuda": [(torch.cuda.default_generators[i] if own is None else own.on(f"cuda:{i}")).get_state() for i in cuda],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "python": [version, list(internal), gauss],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a state of `random_state`."""
    own = current()
    (torch.default_generator if own is None else own.on("cpu")).set_state(state["torch"].cpu())
    if torch.cuda.is_available():
        for index, value in enumerate(state["cuda"]):
            generator = torch.cuda.default_generators[index] if own is None else own.on(f"cuda:{index}")
            generator.set_state(value.cpu())
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))


@contextmanager
def part(name: str) -> Iterator[None]:
    """Turn errors within the block into a ValueError that names the part of the checkpoint."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"its {name!r} is not usable: {reason}") from error


def check_progress(at: Progress, stages: int) -> None:
    """Reject progress that a run of this many stages never has."""
    counts = {"stage": at.stage, "epoch": at.epoch, "step": at.step, "lines": at.lines, "waited": at.plateau.waited}
    counts["stale"] = at.stale
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"{name} is {count!r}")
    if at.stage >= stages or at.begun is not True:
        raise ValueError(f"stage {at.stage} of {stages}, begun: {at.begun}")
    for number in (*at.sums.values(), at.best, at.plateau.factor, at.plateau.best):
        if not _is_number(number) or math.isnan(number):
            raise ValueError(f"{number!r} is not a number")


def check_optimizer(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Reject a state of another optimiser or other parameters."""
    groups, fresh = state["param_groups"], optimizer.state_dict()["param_groups"]
    if [group["params"] for group in groups] != [group["params"] for group in fresh]:
        raise ValueError("it belongs to other parameters")
    for group, own in zip(groups, fresh):
        for name, usual in own.items():
            _check_setting(name, group[name], usual)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known_of = [_kept(optimizer, group) for group in optimizer.param_groups for _ in group["params"]]
    for number, kept in state["state"].items():
        known = known_of[number] if number in range(len(parameters)) else set()
        if number not in range(len(parameters)) or (kept and set(kept) != known):
            raise ValueError(f"of parameter {number} it has {sorted(kept)} in place of {sorted(known)}")
        for name, value in kept.items():
            shape = torch.Size() if name == "step" else parameters[number].shape
            _check_values(f"{name!r} of parameter {number}", value, shape, name in NEVER_NEGATIVE)


def _kept(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> set[str]:
    """Return the names of the optimiser's state for a group; a method's own optimiser names them itself."""
    if "keeps" in group:
        return set(group["keeps"])
    return KEPT[torch.optim.AdamW if group.get("adam") else type(optimizer)]


def check_random(states: Sequence[Mapping[str, Any]]) -> None:
    """Reject states that a generator cannot take."""
    if not states:
        raise ValueError("there is none")
    before = random_state()
    try:
        for state in states:
            _, keys, position, _, cached = state["numpy"]
            if keys.shape != (WORDS,) or not 0 <= position <= WORDS or not math.isfinite(cached):
                raise ValueError("this is not a state of numpy's generator")
            set_random_state(state)  # type: ignore[arg-type]
    finally:
        set_random_state(before)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_setting(name: str, value: Any, usual: Any) -> None:
    alike = type(value) is type(usual) or (_is_number(value) and _is_number(usual))
    numbers = value if isinstance(value, tuple) else [value]
    if not alike or not all(math.isfinite(number) for number in numbers if isinstance(number, float)):
        raise ValueError(f"{name} is {value!r}")


def _check_values(name: str, value: Any, shape: torch.Size, never_negative: bool) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shape:
        found = tuple(value.shape) if isinstance(value, Tensor) else value
        raise ValueError(f"{name} is {found!r} in place of floats of shape {tuple(shape)}")
    if not bool(value.isfinite().all()) or (never_negative and bool((value < 0).any())):
        raise ValueError(f"{name} has impossible values")
