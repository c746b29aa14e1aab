"""Seeded splits that depend only on the number of rows, the fraction and the seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError


def permutation(n: int, seed: int) -> Tensor:
    """Return a permutation of `0..n-1` that is the same on every machine and with every version of the libraries.

    NumPy guarantees the raw stream of a bit generator; neither NumPy nor torch guarantees a shuffle.
    """
    keys = np.random.PCG64(seed).random_raw(n)
    return torch.from_numpy(np.argsort(keys, kind="stable"))


def hold_out(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split `0..n-1` into `(kept, held)`, both ascending, with `round(fraction * n)` rows held out."""
    if not 0 <= fraction <= 1:
        raise UserError(f"a held-out fraction must lie between 0 and 1, not {fraction}")
    order = permutation(n, seed)
    count = round(fraction * n)
    return order[count:].sort().values, order[:count].sort().values


def choose(n: int, subset: int | Sequence[int], seed: int) -> Tensor:
    """Return the first `subset` rows of a seeded shuffle, or the listed rows."""
    if isinstance(subset, int):
        if not 1 <= subset <= n:
            raise UserError(f"subset={subset}: there are {n} rows, so choose between 1 and {n}")
        return permutation(n, seed)[:subset]
    rows = torch.as_tensor(list(subset), dtype=torch.int64)
    outside = rows[(rows < 0) | (rows >= n)]
    if len(outside):
        raise UserError(f"subset: row {int(outside[0])} does not exist, rows are 0 to {n - 1}")
    return rows
