"""Check that a run can resume from a checkpoint: an intact file may still hold a state that no run wrote."""

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
"""What an optimiser keeps of each parameter, once it has had a gradient."""
NEVER_NEGATIVE = ("step", "exp_avg_sq")
WORDS = 624
"""The words of the Mersenne twister in numpy, which itself looks at no index into them."""


@contextmanager
def part(name: str) -> Iterator[None]:
    """Report which part of a checkpoint is at fault.

    Raises:
        ValueError: Whatever it fails with.
    """
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"its {name!r} is not usable: {reason}") from error


def check_progress(at: Progress, stages: int) -> None:
    """Raise `ValueError` if a run of this many stages never reaches this progress."""
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
    """Raise `ValueError` if it is not the state of this optimiser, for these parameters."""
    groups, fresh = state["param_groups"], optimizer.state_dict()["param_groups"]
    if [group["params"] for group in groups] != [group["params"] for group in fresh]:
        raise ValueError("it is of other parameters")
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
    """Return the names that an optimiser keeps of the parameters of a group; a method's own names them itself."""
    if "keeps" in group:
        return set(group["keeps"])
    return KEPT[torch.optim.AdamW if group.get("adam") else type(optimizer)]


def check_random(states: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if a generator cannot be set to one of the states."""
    if not states:
        raise ValueError("there is none")
    before = checkpoint.random_state()
    try:
        for state in states:
            _, keys, position, _, cached = state["numpy"]
            if keys.shape != (WORDS,) or not 0 <= position <= WORDS or not math.isfinite(cached):
                raise ValueError("numpy's generator is never in such a state")
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
