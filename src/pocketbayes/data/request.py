"""The settings common to all loaders, and shared steps: find the folder, select the split.

Splits depend only on the number of rows, the fraction and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.base.seeds import file_seed
from pocketbayes.data.dataset import Dataset

Split = Literal["train", "val", "test"]
# A test split that we choose ourselves must not depend on the seed of a run.
TEST_SEED = 0


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


def seed_of_test(is_file: bool) -> int:
    """Return the seed of a test split that we choose ourselves."""
    return file_seed(TEST_SEED) if is_file else TEST_SEED


def choose(n: int, subset: int | Sequence[int], seed: int) -> Tensor:
    """Return the first `subset` rows of a seeded shuffle, or the listed rows."""
    if isinstance(subset, int):
        if not 1 <= subset <= n:
            raise UserError(f"subset={subset}: there are {n} rows, so choose between 1 and {n}")
        return permutation(n, seed)[:subset]
    try:
        rows = torch.as_tensor([index(row) for row in subset], dtype=torch.int64)
    except (TypeError, OverflowError, RuntimeError) as error:
        raise UserError("subset must be a number of rows, or a list of row numbers") from error
    outside = rows[(rows < 0) | (rows >= n)]
    if len(outside):
        raise UserError(f"subset: row {int(outside[0])} does not exist, rows are 0 to {n - 1}")
    return rows


@dataclass(frozen=True)
class Request:
    """The arguments of `load` that every loader may need."""

    name: str
    split: Split
    folder: Path
    augment: bool
    download: bool
    val_fraction: float
    seed: int

    @property
    def augmented(self) -> bool:
        """Whether to augment, which only applies to the training split."""
        return self.augment and self.split == "train"

    def carve(self, pool: Dataset, test_fraction: float | None = None, is_file: bool = False) -> Dataset:
        """Select the requested split from `pool`.

        Args:
            pool: For a data set with a test split, that split if requested, else all training rows; for a data set
                without one, all rows.
            test_fraction: The fraction of test rows, for a data set without a test split.
            is_file: Whether such a data set is a user's file.
        """
        if test_fraction is None:
            if self.split == "test":
                return pool
            train, val = hold_out(len(pool), self.val_fraction, self.seed)
        else:
            if self.split == "test":
                return pool.take(hold_out(len(pool), test_fraction, seed_of_test(is_file))[1])
            rest = self.kept(len(pool), test_fraction, is_file)
            seed = file_seed(self.seed) if is_file else self.seed
            train, val = (rest[part] for part in hold_out(len(rest), self.val_fraction, seed))
        return pool.take(val if self.split == "val" else train)

    def kept(self, rows: int, test_fraction: float, is_file: bool = False) -> Tensor:
        """Choose the rows for training and validation in a set without a test split."""
        return hold_out(rows, test_fraction, seed_of_test(is_file))[0]

    def root(self, path: str | Path | None, usual: str) -> Path:
        """Return the folder of a tree: `path`, inside the data folder or anywhere, or the usual one."""
        places = [self.folder / path, Path(path).expanduser()] if path else [self.folder / usual, self.folder]
        for place in places:
            if place.is_dir():
                return place
        raise self.missing("folder", places[0])

    def missing(self, what: str, place: Path, otherwise: str = "it cannot be downloaded") -> UserError:
        """Build the error for missing files."""
        return UserError(
            f"data set {self.name!r}: no {what} {place}; "
            f"give the data folder with --data-dir (data_dir=...), {otherwise}"
        )
