"""A tensor of independent Gaussians, for weights and activations."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.randomness import Randomness

Op = Callable[..., Any]


class RuleTable(ABC):
    """The rules for operations on Gaussians; one table per propagation.

    Attributes:
        name: The propagation's name, for errors.
        draws: Whether a weight without a rule is drawn, so that passes differ; otherwise it is refused.
        takes_matrices: Whether weights may hold sparse matrices.
    """

    name: str
    draws: bool = True
    takes_matrices: bool = False

    def drawing_from(self, randomness: Randomness | None) -> RuleTable:
        """Return a table that draws from the given generators; one that never draws returns itself."""
        return self

    def noisy(self, x: Tensor, var: float) -> Gaussian:
        """Return an input with independent noise of the given variance."""
        return Gaussian(x, torch.full_like(x, var), rules=self)

    @abstractmethod
    def covers(self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], weight: Tensor) -> bool:
        """Return whether a rule accepts this argument as a Gaussian weight."""

    @abstractmethod
    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply an operation to arguments that include a Gaussian."""


class Gaussian(torch.Tensor):
    """A tensor of N(mean, var) entries that models see as the tensor of its means.

    The moments are `loc`, `variance` and `stddev`, as in `torch.distributions`, because `mean`, `var` and `std` are
    methods that models call on activations. Operations are looked up in the Gaussian's rule table.
    """

    loc: Tensor
    rules: RuleTable | None
    spent: bool
    _var: Tensor | None
    _std: Tensor | None

    @staticmethod
    def __new__(
        cls, mean: Tensor, var: Tensor | None = None, *, std: Tensor | None = None, rules: RuleTable | None = None
    ) -> Gaussian:
        """Make a Gaussian from a mean and either a variance or a std; a std saves square roots in draws."""
        if (var is None) == (std is None):
            raise ValueError("a Gaussian takes either var or std")
        self = _wrapping(mean, cls)
        self.loc = mean  # as_subclass(torch.Tensor) inside a rule would break torch.compile(fullgraph=True)
        self._var, self._std = var, std
        self.rules = rules
        self.spent = False
        return self

    @property
    def variance(self) -> Tensor:
        """The variance; for a weight with a std it is computed on use, to save memory."""
        if self._var is not None:
            return self._var
        assert self._std is not None
        return self._std * self._std

    @property
    def stddev(self) -> Tensor:
        """The standard deviation; its gradient is 0, not NaN, where the variance is 0."""
        return self._std if self._std is not None else safe_sqrt(self.variance)

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look the operation up in the rule table of the first Gaussian among its arguments."""
        kwargs = kwargs or {}
        if func in METADATA:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        for value in tensors_in((args, kwargs)):
            if isinstance(value, Gaussian) and value.rules is not None:
                return value.rules(func, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Gaussian(loc={self.loc!r}, variance={self.variance!r})"


def _wrapping(mean: Tensor, cls: type[Gaussian]) -> Gaussian:
    """Return a Gaussian of the mean's shape; in a trace by torch.export, tensors have no data to share with it."""
    if not torch.compiler.is_exporting() or torch.compiler.is_dynamo_compiling():
        return mean.as_subclass(cls)
    made = torch.Tensor._make_wrapper_subclass(
        _without_data(cls), mean.shape, strides=mean.stride(), dtype=mean.dtype, device=mean.device
    )
    assert isinstance(made, Gaussian)
    return made


@functools.cache
def _without_data(cls: type[Gaussian]) -> type[Gaussian]:
    """Return the class for Gaussians that have no values but their moments', so torch cannot compute with them."""

    def refuse(_: type, op: Op, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{op} of a Gaussian without a rule")

    return type(cls.__name__, (cls,), {"__torch_dispatch__": classmethod(refuse)})


class Correlated(Gaussian):
    """N(mean, covariance) for every example (b, ...): the entries of one example may be correlated.

    Attributes:
        blocks: (b, g, k, k), the covariance of the d = g k entries of an example, in their flat order; blocks are
            independent, so g = 1 is a full matrix and k = 1 a diagonal one.
    """

    blocks: Tensor

    @staticmethod
    def __new__(cls, mean: Tensor, blocks: Tensor, *, rules: RuleTable | None = None) -> Correlated:
        """Make one from a mean (b, ...) and the blocks of its covariance."""
        diagonal = blocks.diagonal(dim1=-2, dim2=-1)
        self: Correlated = Gaussian.__new__(cls, mean, diagonal.reshape(mean.shape), rules=rules)  # type: ignore[assignment]
        self.blocks = blocks
        return self

    @property
    def covariance(self) -> Tensor:
        """The whole matrix (b, d, d) of every example."""
        examples, groups, size, _ = self.blocks.shape
        if groups == 1:
            return self.blocks[:, 0]
        eye = torch.eye(groups, dtype=self.blocks.dtype, device=self.blocks.device)
        whole = self.blocks.unsqueeze(3) * eye[:, None, :, None]  # (b, g, k, g, k)
        return whole.reshape(examples, groups * size, groups * size)


METADATA: frozenset[Op] = frozenset(
    {getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda",
     "requires_grad", "is_leaf", "is_sparse", "is_quantized", "is_meta", "is_nested", "is_mkldnn", "is_xla", "is_mps")}
    | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride, torch.Tensor.is_floating_point,
       torch.Tensor.is_complex, torch.Tensor.is_contiguous, torch.Tensor.element_size, torch.Tensor.nelement,
       torch.Tensor.__len__, torch.is_floating_point, torch.is_complex, torch.numel}
)  # fmt: skip
"""Operations that depend on a tensor's metadata, not its values."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def mean_of(value: Any) -> Any:
    """Return the mean of a Gaussian; anything else is its own mean."""
    return value.loc if isinstance(value, Gaussian) else value


def safe_sqrt(var: Tensor) -> Tensor:
    """Compute sqrt(var) with gradient 0 at 0, without a floor, which would swamp the small variances of deep nets."""
    positive = var > 0
    return torch.where(positive, var, 1).sqrt() * positive


def noise_like(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw standard normal noise in the tensor's memory format, filled flat: channels_last would be 8x slower."""
    options: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
    if generator is not None:  # torch.compile accepts no generator=None where shapes are dynamic
        options["generator"] = generator
    if tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
        n, c, h, w = tensor.shape
        return torch.randn((n, h, w, c), **options).permute(0, 3, 1, 2)
    return torch.randn(tensor.shape, **options)
