"""Loading of other programs' checkpoints into a model."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError, refusing

_OPTIONAL = "num_batches_tracked"  # older checkpoints lack this buffer, and batch norm loads without it


def load_weights(model: nn.Module, path: str | PathLike[str]) -> None:
    """Load a checkpoint of tensors (`torch.save` or safetensors) without running any code it may carry.

    An enclosing `state_dict` entry and a `module.` before every name, left by data-parallel training scripts, are
    removed. The model is changed only if every name and shape fits.

    Raises:
        UserError: If the file is missing or not a checkpoint, or a tensor does not fit (the message names the first).
    """
    state = _read(Path(path))
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name in state and state[name].shape != tensor.shape:
            shapes = f"{tuple(state[name].shape)} in the file, {tuple(tensor.shape)} in the model"
            raise UserError(f"{path} does not fit the model: {name!r} is {shapes}")
        if name not in state and not name.endswith(_OPTIONAL):
            raise UserError(f"{path} does not fit the model: the file has no {name!r}")
    for name in state:
        if name not in expected:
            raise UserError(f"{path} does not fit the model: the model has no {name!r}")
    with refusing(path, "a checkpoint of plain tensors"):
        model.load_state_dict(state)


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU."""
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}")
    content: Any
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        with refusing(path, "a safetensors file"):
            content = load_file(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        # A file that is not a checkpoint can raise an error of any kind.
        except Exception as error:
            reason = "it holds more than tensors, or is damaged; save its state_dict() alone"
            raise UserError(f"{path} is not a checkpoint that is safe to load: {reason}") from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise UserError(f"{path} is not a checkpoint: a dictionary of tensors is expected")
    if all(name.startswith("module.") for name in content):
        content = {name.removeprefix("module."): tensor for name, tensor in content.items()}
    return dict(content)
