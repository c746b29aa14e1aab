"""Random generators private to one caller, in place of torch's global generator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_GLOBAL_LOCK = threading.RLock()
"""Held while torch's global generator is borrowed for an operation that accepts no other."""
_THREAD = threading.local()

_LIKE = {"rand_like": "uniform_", "randn_like": "normal_", "randint_like": "random_"}
"""Operations without a generator argument in older versions of torch, and their in-place equivalents."""


class Randomness:
    """Private generators with the same seed, one per device.

    They return the numbers that torch's global generator returns after `torch.manual_seed(seed)`.
    """

    def __init__(self, seed: int) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}
        self._seed = seed % 2**64

    def manual_seed(self, seed: int) -> None:
        """Reseed all generators."""
        self._seed = seed % 2**64
        for generator in self._generators.values():
            generator.manual_seed(self._seed)

    def on(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return the generator for a device."""
        device = torch.device(device)
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    def state(self) -> dict[str, Tensor]:
        """Return the state of every generator by device."""
        self.on("cpu")
        return {str(device): generator.get_state() for device, generator in self._generators.items()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for device, value in state.items():
            self.on(device).set_state(value.cpu())

    @contextmanager
    def redirected(self) -> Iterator[Redirection]:
        """Serve every draw of this thread within the block, even from code that uses torch's global generator."""
        before = current()
        _THREAD.randomness = self
        try:
            with Redirection(self) as redirection:
                yield redirection
        finally:
            _THREAD.randomness = before


class Redirection(TorchDispatchMode):
    """A mode in which operations without a generator argument draw from a `Randomness`."""

    def __init__(self, randomness: Randomness) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.randomness = randomness
        self.drew = False
        self._suspended = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler for the first operation."""
        return False

    @contextmanager
    def suspended(self, enabled: bool = True) -> Iterator[None]:
        """Leave the mode within the block: it costs some microseconds per operation."""
        if self._suspended or not enabled:
            yield
            return
        self._suspended = True
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._suspended = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) or _device(args, kwargs).type == "meta":
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        if "dropout_p" in names and _argument(func, "dropout_p", args, kwargs) == 0:  # attention without dropout
            return func(*args, **kwargs)
        if "generator" in names:
            place = names.index("generator")
            if kwargs.get("generator") is not None or (place < len(args) and args[place] is not None):
                return func(*args, **kwargs)
            return func(*args[:place], **{**kwargs, "generator": self._generator(args, kwargs)})
        overload = func._overloadname.replace("low", "low_generator") if "low" in func._overloadname else "generator"
        if overload in func.overloadpacket.overloads():
            return getattr(func.overloadpacket, overload)(*args, **kwargs, generator=self._generator(args, kwargs))
        if (fill := _LIKE.get(func.overloadpacket.__name__)) is not None:
            empty = torch.empty_like(args[0], **kwargs)
            return getattr(empty, fill)(*args[1:], generator=self._generator(args, kwargs))
        with self:  # composite operations, which inference mode does not split
            result = func.decompose(*args, **kwargs)
        return self._borrow(func, args, kwargs) if result is NotImplemented else result

    def _generator(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator:
        self.drew = True
        return self.randomness.on(_device(args, kwargs))

    def _borrow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that needs torch's global generator, seeded from ours and restored afterwards."""
        device = _device(args, kwargs)
        seed = int(torch.randint(2**62, (), generator=self._generator(args, kwargs), device=device))
        with _GLOBAL_LOCK, torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return func(*args, **kwargs)


def _argument(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the value of an operation's argument, or its default."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args), **kwargs)
    default = next(argument.default_value for argument in func._schema.arguments if argument.name == name)
    return given.get(name, default)


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return next((value.device for value in args if isinstance(value, Tensor)), torch.device("cpu"))


def current() -> Randomness | None:
    """Return the source of this thread's random numbers; None for torch's global generator."""
    randomness: Randomness | None = getattr(_THREAD, "randomness", None)
    return randomness


def seed_torch(seed: int) -> None:
    """Seed the source of this thread's random numbers."""
    randomness = current()
    if randomness is None:
        torch.manual_seed(seed)
    else:
        randomness.manual_seed(seed)


@contextmanager
def forked(seed: int | None = None, enabled: bool = True) -> Iterator[None]:
    """Run the block from `seed`, if given, and restore this thread's random state afterwards."""
    randomness = current()
    if not enabled:
        yield
    elif randomness is None:
        with torch.random.fork_rng():
            if seed is not None:
                torch.manual_seed(seed)
            yield
    else:
        before = randomness.state()
        try:
            if seed is not None:
                randomness.manual_seed(seed)
            yield
        finally:
            randomness.set_state(before)
