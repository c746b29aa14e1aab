"""The choice of the fastest memory format, precision and compilation, by timing a few training steps."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.errors import UserError, refusing
from pocketbayes.base.model_lock import copy_model
from pocketbayes.base.run_folder import TUNING_FILE
from pocketbayes.data.batches import Source, batches, steps_per_epoch
from pocketbayes.methods import Method
from pocketbayes.network import Network, members
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation.linear.taps import arranged
from pocketbayes.training.checkpoint import random_state, set_random_state
from pocketbayes.training.compiling import calling, compiled_call
from pocketbayes.training.settings import Training

ROUNDS = 5
MIN_GAIN = 1.05
"""Speed-up that a choice needs to replace the default, since timings vary by a few per cent."""
USUAL = {"channels_last": False, "precision": "32-true", "compile": False}

Choice = Mapping[str, Any]


def tune_steps(
    method: Method, model: nn.Module, train: Source, base: Training, folder: Path | None, resume: bool
) -> tuple[dict[str, Any], str]:
    """Return the settings with the fastest choices, and a line that reports them.

    Each choice is timed on the first batch, in alternation. Settings given by the user are kept. A run with a folder
    stores its choices, and a resumed run uses them again, since they affect the last digits of every number.
    """
    if base.devices > 1 or torch.distributed.is_initialized():
        raise UserError("tune=True measures one process: set channels_last, precision and compile for several")
    known = None if folder is None else folder / TUNING_FILE
    if known is not None and resume and known.is_file():
        with refusing(known, "readable choices of tune=True", "; remove it to measure again"):
            choice = json.loads(known.read_text())
            choice = {name: choice[name] for name in USUAL}
        return choice, f"tuned before: {_text(choice)}"
    before = random_state()
    try:
        choice, gain = _measure(method, model, train, base)
    finally:
        set_random_state(before)
    if known is not None:
        known.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(known, lambda file: file.write(json.dumps(choice).encode()))
    return choice, f"tuned: {_text(choice)}, {gain:.2f} times as fast as without"


def _measure(method: Method, model: nn.Module, train: Source, base: Training) -> tuple[dict[str, Any], float]:
    x, _ = next(iter(batches(train, base.batch_size)))
    device = _device(base)
    network = next(iter(members(method.start(copy_model(model))))).to(device).train()
    usual = {name: getattr(base, name) for name in USUAL}
    free = {name for name, value in USUAL.items() if usual[name] == value}
    choices = [usual]
    if "channels_last" in free and x.ndim == 4:
        choices += [{**each, "channels_last": True} for each in choices]
    if "precision" in free and has_bfloat16(device):
        choices += [{**each, "precision": "bf16-mixed"} for each in choices]
    seconds = medians({_key(each): _step(network, x.to(device), each) for each in choices})
    best = min((each for each in choices if _key(each) in seconds), key=lambda each: seconds[_key(each)], default=usual)
    first = seconds.get(_key(usual), 0.0)
    if _key(best) in seconds and first < MIN_GAIN * seconds[_key(best)]:
        best = usual
    if "compile" in free and has_compiler(device) and _key(best) in seconds:
        compiled = {**best, "compile": True}
        begun = time.perf_counter()
        found = medians({_key(compiled): _step(network, x.to(device), compiled)})
        spent = time.perf_counter() - begun
        steps = base.epochs * steps_per_epoch(train, base.batch_size)
        saved = seconds[_key(best)] - found.get(_key(compiled), float("inf"))
        if found and seconds[_key(best)] > MIN_GAIN * found[_key(compiled)] and saved * steps > spent:
            best, seconds = compiled, seconds | found
    return best, first / seconds[_key(best)] if first else 1.0


def medians(steps: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each step, timed in alternation; steps that fail are left out."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(1 + ROUNDS):
        for name in [name for name in steps if name in times]:
            begun = time.perf_counter()
            try:
                steps[name]()
            except Exception:
                del times[name]
                continue
            times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device computes in bfloat16, not only stores it."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def has_compiler(device: torch.device) -> bool:
    """Return whether `torch.compile` can run: on a CPU it needs a C++ compiler."""
    return device.type == "cuda" or any(shutil.which(name) for name in ("g++", "clang++", "cl"))


def _step(network: Network, x: Tensor, choice: Choice) -> Callable[[], None]:
    """Return a forward and backward pass; the loss does not matter for its time."""
    x = arranged(x, choice["channels_last"] and x.ndim == 4)
    half = choice["precision"].startswith("bf16")
    call = compiled_call(network) if choice["compile"] else None

    def step() -> None:
        with calling(network, call), torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            output = network(x)
        moments = (output.loc, output.variance) if isinstance(output, Gaussian) else (output,)
        torch.stack([moment.float().square().mean() for moment in moments]).sum().backward()
        if x.device.type == "cuda":
            torch.cuda.synchronize()

    return step


def _device(base: Training) -> torch.device:
    on_gpu = base.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def _key(choice: Choice) -> str:
    return json.dumps(dict(choice), sort_keys=True)


def _text(choice: Choice) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in choice.items())
