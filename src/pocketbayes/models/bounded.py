"""Models built on the word of a file, which may lie: no larger than its weights, nothing fetched."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import init
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from pocketbayes.base.errors import UserError
from pocketbayes.models.external import VALUES
from pocketbayes.models.registry import build

FETCHING = VALUES | {"pretrained_backbone", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}
"""Arguments that would read other files or the network."""
FILLING = frozenset(
    {Tensor.normal_, Tensor.uniform_, init.normal_, init.uniform_, init.kaiming_normal_, init.kaiming_uniform_}
)


def build_bounded(name: str, args: Mapping[str, Any], tensors: int, values: int) -> nn.Module:
    """Builds a model that has about so many tensors and values; stops as soon as it has many more.

    A tensor is counted before it is filled, and memory that is not filled is not taken.
    """
    if fetching := sorted(FETCHING & args.keys()):
        raise UserError(f"model {name!r}: a file may not set {', '.join(fetching)}")
    with _stopping(name, tensors, values), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a loaded model was built before, and its builder warned then
        if ":" in name:
            return build(name, **args)
        with _Unfilled():
            return build(name, **args)


class _Unfilled(TorchFunctionMode):
    """Leaves out the drawing of first weights: those of our own models are all about to be replaced."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FILLING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def _stopping(name: str, tensors: int, values: int) -> Iterator[None]:
    """Counts what modules register while a model is built; some register what they replace later."""
    left = {"tensors": 2 * tensors + 64, "values": 2 * values + (1 << 20), "modules": 20 * tensors + 1024}

    def count(kind: str, amount: int = 1) -> None:
        left[kind] -= amount
        if left[kind] < 0:
            raise UserError(f"model {name!r} has more {kind} than the file: not the same architecture")

    def tensor(module: nn.Module, key: str, value: Tensor | None) -> None:
        count("tensors")
        count("values", 0 if value is None else value.numel())

    def submodule(module: nn.Module, key: str, value: nn.Module | None) -> None:
        count("modules")

    handles = [
        hooks.register_module_parameter_registration_hook(tensor),
        hooks.register_module_buffer_registration_hook(tensor),
        hooks.register_module_module_registration_hook(submodule),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
