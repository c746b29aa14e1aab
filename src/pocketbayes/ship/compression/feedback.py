"""Coding with error feedback: weights that are coded later compensate the errors of earlier ones.

For a layer with inputs of second moment H, the output error of codes Q is tr((W - Q) H (W - Q)^T). Columns are coded
one after another, each by the codebook's rate and distortion; the error of a column is then spread over later columns
so that the output error is minimal given the codes so far (Frantar et al. 2022, Optimal Brain Compression and GPTQ,
with a rate term). Without inputs nothing is spread, and the result is the codebook's own assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

DAMPING = 0.01
"""Addition to the diagonal of H, relative to its mean, for columns that the inputs never use."""
BLOCK = 128
"""Number of columns whose errors are spread together over the rest."""

GOLDEN_RATIO = 0.6180339887498949

Assign = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function from weights (g, r) and their positions in the slot (g, r) to codes and decoded values."""


def code_with_feedback(
    weight: Tensor, shares: Tensor | None, assign: Assign, share: tuple[float, float] = (0.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """Code one slot, or a range of its columns.

    Args:
        weight: The slot's weights in their shape; columns before `share` are already coded and unchanged.
        shares: The slot's entry of `error_shares`; None for no feedback.
        assign: The choice of codes.
        share: The range of columns to code, as fractions.

    Returns:
        Codes in the weight's shape, -1 outside of `share`, and the values of all weights with the errors fed back.
    """
    places = torch.arange(weight.numel(), device=weight.device).view(weight.shape)
    if shares is None:
        blocks, columns = 1, weight.numel() // max(weight.shape[0], 1) if weight.ndim else 1
    else:
        blocks, columns = shares.shape[0], shares.shape[1]
    first, last = (round(end * columns) for end in share)
    order = _spread_order(columns).to(weight.device)
    values, where = (_as_blocks(each, blocks, columns)[:, :, order] for each in (weight, places))
    codes = torch.full_like(where, -1)
    if shares is None:
        codes[:, :, first:last] = assign(values[:, :, first:last], where[:, :, first:last])[0]
    else:
        _code_columns(values, codes, where, shares.to(weight.dtype), assign, range(first, last))
    index = torch.empty_like(places).flatten()
    coded = torch.empty_like(weight).flatten()
    index[where.flatten()] = codes.flatten()
    coded[where.flatten()] = values.flatten()
    return index.view(weight.shape), coded.view(weight.shape)


def _code_columns(values: Tensor, codes: Tensor, where: Tensor, share: Tensor, assign: Assign, columns: range) -> None:
    """Code these columns one after another, changing codes and the values of later columns in place."""
    for start in range(columns.start, columns.stop, BLOCK):
        stop = min(start + BLOCK, columns.stop)
        errors = torch.empty_like(values[:, :, start:stop])
        for column in range(start, stop):
            codes[:, :, column], decoded = assign(values[:, :, column], where[:, :, column])
            error = values[:, :, column] - decoded
            errors[:, :, column - start] = error
            if column + 1 < stop:
                ahead = share[:, None, column, column + 1 : stop]
                values[:, :, column + 1 : stop].addcmul_(error[:, :, None], ahead, value=-1)
        if stop < values.shape[2]:
            values[:, :, stop:].baddbmm_(errors, share[:, start:stop, stop:], alpha=-1)


def _as_blocks(tensor: Tensor, blocks: int, columns: int) -> Tensor:
    """View a weight as (blocks, rows, columns): blocks are groups of a convolution or ranges of input channels."""
    matrix = tensor.reshape(tensor.shape[0], -1)
    cuts = matrix.shape[1] // columns
    groups = blocks // cuts
    return matrix.reshape(groups, -1, cuts, columns).transpose(1, 2).reshape(blocks, -1, columns)


def _spread_order(columns: int) -> Tensor:
    """Return the order in which columns are coded, whose every part is spread evenly over all columns."""
    return (torch.arange(columns, dtype=torch.float64) * GOLDEN_RATIO).frac().argsort()


def error_shares(moments: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return for each slot the share of each column's error that each later column takes, in coding order.

    These are the rows of the Cholesky factor of the inverse moments, in units of its diagonal. They depend on the
    inputs alone, so that one computation serves every codebook.
    """
    return [None if own is None else _shares(own) for own in moments]


def _shares(moments: Tensor) -> Tensor:
    order = _spread_order(moments.shape[1]).to(moments.device)
    h = moments[:, order][:, :, order].double()
    scale = h.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-30)
    h = h / scale[:, None, None] + DAMPING * torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    shares: Tensor = upper / upper.diagonal(dim1=1, dim2=2)[:, :, None]
    return shares.to(moments.dtype)
