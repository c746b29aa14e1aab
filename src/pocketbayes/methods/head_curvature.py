"""The curvature of a softmax head in closed form, without a backward pass per class."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def softmax_curvature() -> type:
    """Return a backend for laplace-torch, whose own runs a backward pass per class and batch.

    For logits z = W f + b the Hessian of the NLL is `L x f f^T` with L = diag(p) - p p^T. Its Kronecker factors are
    `sum L` and the mean of `f f^T`, its diagonal is `sum p (1 - p) f^2`.
    """
    from laplace.curvature import CurvlinopsGGN
    from laplace.utils import Kron

    base: Any = CurvlinopsGGN

    class SoftmaxCurvature(base):
        """The generalised Gauss-Newton matrix of a `_Head`."""

        def kron(self, x: Tensor, y: Tensor, N: int, **kwargs: Any) -> tuple[Tensor, Any]:
            """Return the loss and the factors of weight and bias."""
            logits, p = self._answers(x)
            rows = torch.diag(p.sum(0)) - p.T @ p
            factors: Any = [[rows, x.T @ x / N], *([[rows.clone()]] if self._has_bias() else [])]
            return self.lossfunc(logits, y), Kron(factors)

        def diag(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
            """Return the loss and the diagonal, of the weight and then of the bias."""
            logits, p = self._answers(x)
            slopes = p * (1 - p)
            parts = [(slopes.T @ x.square()).flatten(), *([slopes.sum(0)] if self._has_bias() else [])]
            return self.lossfunc(logits, y), torch.cat(parts)

        def _answers(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                logits = self.model(x)
            return logits, logits.softmax(1)

        def _has_bias(self) -> bool:
            return self.model.linear.bias is not None

    return SoftmaxCurvature
