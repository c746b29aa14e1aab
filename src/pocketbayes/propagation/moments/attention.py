"""Softmax and attention, composed of simpler rules."""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, Op, mean_of
from pocketbayes.propagation.moments.arithmetic import add, matmul, mul, scaled
from pocketbayes.propagation.moments.shape import move
from pocketbayes.propagation.moments.table import RULES, Rule, rule


@rule("softmax")
def softmax(input: Gaussian, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Gaussian:
    """Apply softmax to the means, with variance `J^2 v = p_i^2 ((1 - 2 p_i) v_i + sum_j p_j^2 v_j)`."""
    probs = torch.softmax(input.loc, dim, dtype=dtype)
    squares = probs.square()
    spread = (squares * input.variance).sum(dim, keepdim=True)
    return Gaussian(probs, squares * torch.addcmul(spread, 1 - 2 * probs, input.variance))


@rule("log_softmax")
def log_softmax(input: Gaussian, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Gaussian:
    """Apply log-softmax, with variance `(1 - 2 p_i) v_i + sum_j p_j^2 v_j`."""
    mean = torch.log_softmax(input.loc, dim, dtype=dtype)
    probs = mean.exp()
    spread = (probs.square() * input.variance).sum(dim, keepdim=True)
    return Gaussian(mean, torch.addcmul(spread, 1 - 2 * probs, input.variance))


@rule("scaled_dot_product_attention")
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Gaussian:
    """Compute `softmax(q k^T / sqrt(d) + mask) v` by the rules of product and softmax."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (_apply(torch.Tensor.repeat_interleave, x, groups, -3) for x in (key, value))
    weights = _attention_weights(query, key, _mask(query, key, attn_mask, is_causal), dropout_p, scale)
    return matmul(weights, value)


def _attention_weights(query: Any, key: Any, mask: Tensor | None, dropout_p: float, scale: float | None) -> Any:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    weights: Any
    if isinstance(query, Gaussian) or isinstance(key, Gaussian):
        scores = matmul(scaled(query, scale), _apply(torch.Tensor.transpose, key, -2, -1))
        weights = softmax(scores if mask is None else add(scores, mask), -1)
    else:
        weights = torch.softmax(query * scale @ key.mT + (0.0 if mask is None else mask), -1)
    if mask is not None:
        weights = _apply(torch.Tensor.masked_fill, weights, (mask == -math.inf).all(-1, keepdim=True), 0.0)
    if dropout_p == 0:
        return weights
    kept = F.dropout(torch.ones_like(mean_of(weights)), dropout_p)
    return mul(weights, kept) if isinstance(weights, Gaussian) else weights * kept


def _apply(op: Op, x: Any, *args: Any) -> Any:
    return move(op)(x, *args) if isinstance(x, Gaussian) else op(x, *args)


def _mask(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Return the additive mask of the scores, -inf for masked keys."""
    if is_causal:
        size = query.shape[-2], key.shape[-2]
        mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, -math.inf)


UNTRACEABLE = "its moments are found step by step, which torch's tracer cannot follow"


def step_by_step(function: Any) -> Rule:
    """Return a rule that runs a Python function of torch step by step, so that each operation uses its own rule.

    torch's tracer does not look up rules inside a rule and would lose the variance, so tracing is refused.
    """
    no = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    names = {**function.__globals__, **no}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)

    def propagate(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=f"{function.__name__}: {UNTRACEABLE}")
        return copy(*args, **kwargs)

    return propagate


COMPOSED: dict[Op, Rule] = {op: step_by_step(op) for op in (F.multi_head_attention_forward, F.local_response_norm)}
"""Functions composed of others, run by their own code."""

RULES.update(COMPOSED)
