"""Sparse matrices: products and gradients over the present values only."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pocketbayes.posteriors.gaussian import METADATA, Op


@dataclass(frozen=True)
class Pattern:
    """The positions of a matrix's values in compressed sparse rows.

    Attributes:
        shape: (rows, columns).
        starts: (rows + 1,) positions of each row's first value.
        columns: The column of every value.
    """

    shape: tuple[int, int]
    starts: Tensor
    columns: Tensor

    @classmethod
    def of(cls, index: Tensor, shape: tuple[int, int]) -> Pattern:
        """Return the pattern of ascending positions in the flattened matrix."""
        rows, columns = shape
        firsts = torch.arange(0, (rows + 1) * columns, columns, device=index.device, dtype=index.dtype)
        # MKL takes 32-bit positions and would convert others at every call.
        return cls(shape, torch.searchsorted(index, firsts, out_int32=True), index.remainder(columns).int())

    def matrix(self, values: Tensor) -> Tensor:
        """Return the matrix with these values."""
        _silence_beta_warning()
        return torch.sparse_csr_tensor(self.starts, self.columns, values, self.shape, check_invariants=False)

    def transpose(self, values: Tensor) -> Tensor:
        """Return its transpose."""
        order, pattern = self._transposed
        return pattern.matrix(values.index_select(0, order))

    @property
    def nbytes(self) -> int:
        """Bytes of the current tables."""
        known = self.__dict__.get("_transposed")
        return self.starts.nbytes + self.columns.nbytes + (known[0].nbytes + known[1].nbytes if known else 0)

    @cached_property
    def _transposed(self) -> tuple[Tensor, Pattern]:
        """The transposed pattern, needed only for gradients of the input."""
        rows, columns = self.shape
        row = torch.repeat_interleave(torch.arange(rows, device=self.columns.device), self.starts.diff())
        index, order = torch.sort(self.columns.long() * rows + row)
        return order.int(), Pattern.of(index, (columns, rows))


class SparseMatrix(torch.Tensor):
    """A sparse matrix that looks like a dense one to a model, but only F.linear may use it.

    It holds no dense memory. The plan of a network ensures that the model passes it to F.linear only.
    """

    values_: Tensor
    pattern: Pattern

    @staticmethod
    def __new__(cls, pattern: Pattern, values: Tensor) -> SparseMatrix:
        """Make a matrix of a pattern and its values, in the pattern's order."""
        self = values.detach().new_zeros(()).expand(pattern.shape).as_subclass(cls)
        self.values_, self.pattern = values, pattern
        return self

    def dense(self) -> Tensor:
        """Return a dense copy."""
        return self.pattern.matrix(self.values_.detach()).to_dense()

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle F.linear and metadata; reject other operations."""
        if func is F.linear:
            return _linear(*args, **(kwargs or {}))
        if func in METADATA or func is torch.Tensor.as_subclass:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise RuntimeError(
            f"a sparse weight was planned for F.linear, but {getattr(func, '__name__', func)} uses it: the model's "
            "flow changed since its first call; call net.forget_plan() or choose kernel='dense'"
        )


def _linear(input: Tensor, weight: SparseMatrix, bias: Tensor | None = None) -> Tensor:
    """Compute X W^T + b for inputs (..., columns), with contiguous output, since models may view it."""
    rows, columns = weight.pattern.shape
    x = input.reshape(-1, columns).t()
    if torch.is_grad_enabled() and (weight.values_.requires_grad or x.requires_grad):
        product: Tensor = _Product.apply(weight.values_, x, weight.pattern)
        product = product if bias is None else product + bias[:, None]
    elif bias is None:
        product = weight.pattern.matrix(weight.values_) @ x
    else:
        product = torch.addmm(bias[:, None], weight.pattern.matrix(weight.values_), x)
    return product.t().contiguous().view(*input.shape[:-1], rows)


class _Product(torch.autograd.Function):
    """W X for a sparse W (rows, columns) and a dense X (columns, examples)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, pattern: Pattern) -> Tensor:
        x = x.contiguous()
        ctx.pattern = pattern
        ctx.save_for_backward(values, x)
        return pattern.matrix(values) @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Compute grad X^T at the present positions, and W^T grad."""
        values, x = ctx.saved_tensors
        grad = grad.contiguous()
        of_values = of_x = None
        if ctx.needs_input_grad[0]:
            places = ctx.pattern.matrix(torch.zeros_like(values))
            of_values = torch.sparse.sampled_addmm(places, grad, x.t(), beta=0.0).values()
        if ctx.needs_input_grad[1]:
            of_x = ctx.pattern.transpose(values) @ grad
        return of_values, of_x, None


@cache
def _silence_beta_warning() -> None:
    """Suppress torch's one-time warning that its sparse layouts may still change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1).to_sparse_csr()
