"""Checks that a run can resume from a checkpoint, since an intact file may hold an impossible state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pocketbayes.training import checkpoint
from pocketbayes.training.checkpoint import Progress
from pocketbayes.training.optimizers import SGDWithAdamStds

KEPT: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}
KEPT[SGDWithAdamStds] = KEPT[torch.optim.SGD]
"""Optimiser state per parameter after its first gradient."""
NEVER_NEGATIVE = ("step", "exp_avg_sq")
WORDS = 624
"""Number of words in numpy's Mersenne twister, whose position numpy does not check."""


@contextmanager
def part(name: str) -> Iterator[None]:
    """Turn errors within the block into a ValueError that names the part of the checkpoint.

    Raises:
        ValueError: If the block fails.
    """
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
            raise ValueError(f"{number!r} is no number")


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
    before = checkpoint.random_state()
    try:
        for state in states:
            _, keys, position, _, cached = state["numpy"]
            if keys.shape != (WORDS,) or not 0 <= position <= WORDS or not math.isfinite(cached):
                raise ValueError("numpy's generator never has such a state")
            checkpoint.set_random_state(state)  # type: ignore[arg-type]
    finally:
        checkpoint.set_random_state(before)


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
        raise ValueError(f"{name} has values that it never has")
