"""Coding with error feedback: weights that are coded later compensate the errors of earlier ones.

For a layer with inputs of second moment H, the output error of codes Q is tr((W - Q) H (W - Q)^T). Columns are coded
one after another, each by the codebook's rate and distortion; the error of a column is then spread over later columns
so that the output error is minimal given the codes so far (Frantar et al. 2022, Optimal Brain Compression and GPTQ,
with a rate term). On a trellis every row has four candidates, each with errors of its own. Without inputs nothing is
spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pocketbayes.plane.trellis import Search, code_paths, path_length, path_order

DAMPING = 0.01
"""Addition to the diagonal of H, relative to its mean, for columns that the inputs never use."""
BLOCK = 128
"""Number of columns whose errors are spread together over the rest."""

Assign = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function from weights (b, r) and their positions in the slot (b, r) to codes and decoded values."""


@dataclass
class Greedy:
    """A search in which every weight takes its own best code."""

    assign: Assign
    survivors: ClassVar[int] = 1

    def start(self, before: Tensor) -> None:
        """Do nothing: codes do not depend on earlier ones."""

    def extend(self, values: Tensor, places: Tensor) -> tuple[Tensor, Tensor, None]:
        """Code the next weight."""
        codes, decoded = self.assign(values[..., 0], places)
        return codes[..., None], decoded[..., None], None

    def best(self, shape: Sequence[int]) -> Tensor:
        """Return the only candidate."""
        return torch.zeros(*shape, 1, dtype=torch.long)


def code_with_feedback(
    weight: Tensor,
    shares: Tensor | None,
    search: Search,
    share: tuple[float, float] = (0.0, 1.0),
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Code one slot, or a range of its columns.

    Args:
        weight: The slot's weights in their shape; columns before `share` are already coded and unchanged.
        shares: The slot's entry of `error_shares`; None for no feedback.
        search: The choice of codes.
        share: The range of columns to code, as fractions.
        index: The codes so far, in the weight's shape.

    Returns:
        Codes in the weight's shape, and its values: those decoded, and for the rest those with the errors fed back.
    """
    places = torch.arange(weight.numel(), device=weight.device).view(weight.shape)
    if not weight.numel():
        return places, weight
    rows = weight.shape[0] if weight.ndim else 1
    columns = path_length(weight.numel() // rows)
    blocks = weight.numel() // (columns * rows) if shares is None else shares.shape[0]
    first, last = (round(end * columns) for end in share)
    order = _order(columns).to(weight.device)
    known = torch.full_like(places, -1) if index is None else index
    values, where, codes = (_as_blocks(each, blocks, columns)[:, :, order] for each in (weight, places, known))
    own = None if shares is None else shares.to(weight.dtype)
    for start in range(first, last, BLOCK):
        part = slice(start, min(start + BLOCK, last))
        search.start(codes[:, :, :start])
        inside = None if own is None else own[:, part, part]
        codes[:, :, part], values[:, :, part], errors = code_paths(
            values[:, :, part], where[:, :, part], inside, search
        )
        if own is not None and part.stop < columns:
            values[:, :, part.stop :].baddbmm_(errors, own[:, part, part.stop :], alpha=-1)
    found, coded = torch.empty_like(places).flatten(), torch.empty_like(weight).flatten()
    found[where.flatten()] = codes.flatten()
    coded[where.flatten()] = values.flatten()
    return found.view(weight.shape), coded.view(weight.shape)


def _as_blocks(tensor: Tensor, blocks: int, columns: int) -> Tensor:
    """View a weight as (blocks, rows, columns): blocks are groups of a convolution or ranges of input channels."""
    matrix = tensor.reshape(tensor.shape[0] if tensor.ndim else 1, -1)
    cuts = matrix.shape[1] // columns
    groups = blocks // cuts
    return matrix.reshape(groups, -1, cuts, columns).transpose(1, 2).reshape(blocks, -1, columns)


def _order(columns: int) -> Tensor:
    return torch.from_numpy(path_order(columns))


def error_shares(moments: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return for each slot the share of each column's error that each later column takes, in coding order.

    These are the rows of the Cholesky factor of the inverse moments, in units of its diagonal. They depend on the
    inputs alone, so that one computation serves every codebook.
    """
    return [None if own is None else _shares(own) for own in moments]


def _shares(moments: Tensor) -> Tensor:
    order = _order(moments.shape[1]).to(moments.device)
    h = moments[:, order][:, :, order].double()
    scale = h.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-30)
    h = h / scale[:, None, None] + DAMPING * torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    shares: Tensor = upper / upper.diagonal(dim1=1, dim2=2)[:, :, None]
    return shares.to(moments.dtype)
