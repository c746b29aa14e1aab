"""Models built from untrusted files: no larger than the file's weights, and without downloads."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from pocketbayes.base.errors import UserError
from pocketbayes.models.external import VALUES
from pocketbayes.models.registry import build, is_built_in

FETCHING = VALUES | {"pretrained_backbone", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}
"""Arguments that would read other files or download."""
FREE_VALUES = 1 << 20
"""Values that a builder may create beyond those in the file."""
VALUES_PER_OPERATION = 64
"""The minimum cost of an operation, since a million tiny ones take time, too."""
INTERMEDIATE_PER_VALUE = 64
"""Intermediate values that a builder may compute per value of the model."""
LARGEST_ARGUMENT = 1 << 16
SECONDS, VALUES_PER_SECOND = 10.0, 5e6
"""CPU time of a builder."""


def build_bounded(name: str, args: Mapping[str, Any], tensors: int, values: int) -> nn.Module:
    """Build a model of about `tensors` tensors and `values` values, and stop before it takes much more.

    Built-in models are built on the meta device, since all their tensors will be replaced. Other models may compute
    buffers that no file holds, so they are built for real, but each tensor's size is first determined on the meta
    device. A file that claims a huge model therefore costs neither memory nor time.
    """
    if fetching := sorted(FETCHING & args.keys()):
        raise UserError(f"model {name!r}: a file may not set {', '.join(fetching)}")
    total = sum(abs(number) for number in tree_leaves(dict(args)) if isinstance(number, int | float))
    if not total <= max(LARGEST_ARGUMENT, values):
        raise UserError(f"model {name!r}: its arguments are larger than the file: not the same architecture")
    budget = _Budget(name, tensors, values)
    with budget.of_modules(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the builder already warned when the model was first built
        if not is_built_in(name):
            with budget:
                return build(name, **args)
        with torch.device("meta"), _WithoutRandomNumbers():
            model = build(name, **args)
    # As `to_empty`, whose `empty_like` imports sympy.
    model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))
    return model


class _WithoutRandomNumbers(TorchFunctionMode):
    """Leaves out draws into meta tensors: they change nothing, and the first one imports torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run anything but a draw."""
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **(kwargs or {}))


class _Budget(TorchDispatchMode):
    """The number of values that a builder may still create, in this thread alone."""

    def __init__(self, name: str, tensors: int, values: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = name
        self.left = {
            "tensors": 2 * tensors + 64,
            "values": 5 * values + FREE_VALUES,  # SSD builds all of VGG and keeps a quarter
            "modules": 20 * tensors + 1024,
            "intermediate values": INTERMEDIATE_PER_VALUE * (values + FREE_VALUES),
        }
        self.deadline = time.thread_time() + SECONDS + values / VALUES_PER_SECOND

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation unless it creates more values than a model of the file's size has."""
        kwargs = kwargs or {}
        if not (func._schema.is_mutable or func.is_view):
            size = _count_values(func, args, kwargs)
            self.charge("intermediate values", max(size, VALUES_PER_OPERATION))
            if size > self.left["values"]:
                self.charge("values", size)
        return func(*args, **kwargs)

    def charge(self, kind: str, amount: int = 1) -> None:
        """Charge what a builder creates to the budget."""
        self.left[kind] -= amount
        if self.left[kind] < 0:
            raise UserError(f"model {self.name!r} has more {kind} than the file: not the same architecture")
        if time.thread_time() > self.deadline:
            raise UserError(f"model {self.name!r} takes too long to build for a file of this size")

    @contextmanager
    def of_modules(self) -> Iterator[None]:
        """Charge the tensors and modules registered in this thread, including those replaced later."""
        thread = threading.get_ident()

        def tensor(module: nn.Module, key: str, value: Tensor | None) -> None:
            if threading.get_ident() == thread:
                self.charge("tensors")
                self.charge("values", 0 if value is None else value.numel())

        def submodule(module: nn.Module, key: str, value: nn.Module | None) -> None:
            if threading.get_ident() == thread:
                self.charge("modules")

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


def _count_values(func: Any, args: Any, kwargs: Mapping[str, Any]) -> int:
    """Return how many values an operation would create, without running it."""
    positional, named = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, dict(kwargs)))
    if any(argument.name == "device" for argument in func._schema.arguments):
        named["device"] = torch.device("meta")
    try:
        made = func(*positional, **named)
    except (NotImplementedError, RuntimeError):  # it fails, or depends on values and returns no more than its inputs
        return 0
    return sum(tensor.numel() for tensor in tree_leaves(made) if isinstance(tensor, Tensor))
