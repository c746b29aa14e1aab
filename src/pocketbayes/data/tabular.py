"""Regression data: the UCI benchmarks with their standard splits, and the cubic toy data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError, refusing
from pocketbayes.base.seeds import split_seed
from pocketbayes.data.dataset import Arrays, Dataset, Info
from pocketbayes.data.request import TEST_SEED, Request

Array = npt.NDArray[np.float64]
MAX_POINTS = 10_000_000


def uci(request: Request, *, set: str, index: int = 0) -> Dataset:
    """Load `uci/UCI_Datasets/<set>/data`, split `index` of the standard ones.

    Features and targets are standardised by the standard training split, including validation rows, so that the test
    split is independent of the validation fraction.

    Args:
        request: The common settings.
        set: The name of the folder, such as "bostonHousing".
        index: The number of the standard split (of 20; of 5 for the largest data set).
    """
    base = request.root("uci/UCI_Datasets", "")
    known = sorted(path.parent.name for path in base.glob("*/data"))
    check_choice(f"set in {base}", set, known)
    folder = base / set / "data"
    splits = len(list(folder.glob("index_train_*.txt")))
    if not 0 <= index < splits:
        raise UserError(f"data set 'uci/{set}': no split index={index}; choose 0 to {splits - 1}")
    table = _table(folder / "data.txt")
    features = _indices(folder / "index_features.txt", table.shape[1])
    target = _indices(folder / "index_target.txt", table.shape[1])
    train = table[_indices(folder / f"index_train_{index}.txt", len(table))]
    wanted = table[_indices(folder / f"index_test_{index}.txt", len(table))] if request.split == "test" else train

    mean, std = train.mean(axis=0), train.std(axis=0)
    std[std == 0] = 1.0  # a constant column must not become NaN
    rows = torch.from_numpy((wanted - mean) / std).float()
    info = Info(
        name=f"uci/{set}",
        task="regression",
        classes=None,
        class_names=None,
        input_shape=(len(features),),
        mean=tuple(mean[features].tolist()),
        std=tuple(std[features].tolist()),
        target_mean=float(mean[target[0]]),
        target_std=float(std[target[0]]),
    )
    return request.carve(Arrays(rows[:, features], rows[:, target[:1]], info))


def toy_cubic(request: Request, *, n: int = 20, noise_std: float = 3.0) -> Dataset:
    """Draw `y = x^3 + N(0, noise_std^2)`.

    `x` is uniform in [-4, 4] for training; for testing, 10,000 points are evenly spaced in [-6, 6]. Validation points
    are drawn in addition to the `n` training points.

    Args:
        request: The common settings; `seed` applies to training and validation points.
        n: The number of training points, 20 or 30,000 in the paper.
        noise_std: 3 in the paper; 0 gives the curve itself.
    """
    if not 1 <= n <= MAX_POINTS:
        raise UserError(f"data set 'toy-cubic': n={n}, but it has 1 to {MAX_POINTS} points")
    if not 0 <= noise_std < math.inf:
        raise UserError(f"data set 'toy-cubic': noise_std={noise_std}, which must be finite and not negative")
    count = n if request.split == "train" else round(n * request.val_fraction)
    if request.split == "test":
        random = torch.Generator().manual_seed(TEST_SEED)
        x = torch.linspace(-6, 6, 10_000).unsqueeze(1)
    else:
        random = torch.Generator().manual_seed(split_seed(request.seed, request.split))
        x = torch.rand(count, 1, generator=random) * 8 - 4
    y = x**3 + noise_std * torch.randn(x.shape, generator=random)
    return Arrays(x, y, Info("toy-cubic", "regression", None, None, (1,)))


def _table(path: Path) -> Array:
    """Return the numbers in a file, one row per line."""
    with refusing(path, "a readable table of numbers"):
        values = np.loadtxt(path, dtype=np.float64, ndmin=2)
    if not np.isfinite(values).all():
        raise UserError(f"{path}: not all of its numbers are finite")
    return values


def _indices(path: Path, size: int) -> npt.NDArray[Any]:
    values = _table(path).reshape(-1)
    rows = values.astype(np.int64)
    if (rows != values).any() or rows.min() < 0 or rows.max() >= size:
        raise UserError(f"{path}: holds an index outside 0 to {size - 1}")
    return rows
