"""Errors for invalid batches name the data set, position and value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pocketbayes.base.errors import UserError
from pocketbayes.data import Info, collate, validate_batch
from pocketbayes.data.batches import as_source, batches, epoch_order

CLASSIFICATION = Info("pets", "classification", 3, None, (2, 4))
REGRESSION = Info("prices", "regression", None, None, (2,))
SEGMENTATION = Info("streets", "segmentation", 3, None, (3, 4, 5), ignore_index=255)


def batch(info: Info) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, *info.input_shape)
    if info.task == "regression":
        return x, torch.randn(6, 1)
    return x, torch.randint(0, 3, (6,) if info.task == "classification" else (6, 4, 5))


@pytest.mark.parametrize("info", [CLASSIFICATION, REGRESSION, SEGMENTATION], ids=lambda info: info.task)
def test_validate_passes_a_good_batch(info: Info) -> None:
    x, y = batch(info)
    validate_batch(x, y, info)
    validate_batch(x.double(), y, info)
    # Finite values whose sum is not are still finite values.
    validate_batch(torch.full_like(x, 3e38), y, info)
    if info.ignore_index is not None:
        validate_batch(x, torch.full_like(y, info.ignore_index), info)


def set_at(tensor: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    tensor[place] = value
    return tensor


@pytest.mark.parametrize(
    ("info", "spoil", "message"),
    [
        (
            CLASSIFICATION,
            lambda x, y: (set_at(x, (2, 1, 3), torch.nan), y),
            "'pets': x is nan at position 2 of a batch, (1, 3)",
        ),
        (
            CLASSIFICATION,
            lambda x, y: (set_at(x, (5, 0, 0), -torch.inf), y),
            "x is -inf at position 5 of a batch, (0, 0)",
        ),
        (
            CLASSIFICATION,
            lambda x, y: (x, set_at(y, (4,), 3)),
            "label 3 at position 4 of a batch, but labels are 0 to 2",
        ),
        (CLASSIFICATION, lambda x, y: (x, set_at(y, (1,), -1)), "label -1 at position 1"),
        (CLASSIFICATION, lambda x, y: (x[:, :, :3], y), "inputs of shape (2, 3) in a batch, expected (2, 4)"),
        (CLASSIFICATION, lambda x, y: (x, y[:5]), "targets of shape (5,) do not match inputs of shape (6, 2, 4)"),
        (CLASSIFICATION, lambda x, y: (x, y[:, None]), "targets of shape (6, 1)"),
        (CLASSIFICATION, lambda x, y: (x, y.float()), "targets of type torch.float32 do not match classification"),
        (CLASSIFICATION, lambda x, y: (x[:0], y[:0]), "an empty batch"),
        (
            REGRESSION,
            lambda x, y: (x, set_at(y, (3, 0), torch.inf)),
            "'prices': y is inf at position 3 of a batch, (0,)",
        ),
        (REGRESSION, lambda x, y: (x, y[:, 0]), "targets of shape (6,)"),
        (REGRESSION, lambda x, y: (x, y.long()), "targets of type torch.int64 do not match regression"),
        (SEGMENTATION, lambda x, y: (x, set_at(y, (1, 2, 3), 7)), "label 7 at position 1 of a batch, (2, 3)"),
        (SEGMENTATION, lambda x, y: (x, y[:, :3]), "targets of shape (6, 3, 5)"),
    ],
)
def test_validate_names_a_bad_batch(
    info: Info, spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        validate_batch(*spoil(*batch(info)), info)
    assert message in str(caught.value)
    assert info.name in str(caught.value)


def test_validate_names_the_example_in_any_order() -> None:
    x, y = torch.zeros(20, 2), torch.zeros(20, 1)
    x[13, 1] = torch.nan
    source = as_source((x, y))
    complaint = r"'arrays': x is nan at example 13, \(1,\)"
    with pytest.raises(UserError, match=complaint):
        list(batches(source, 6, shuffle_seed=4))
    with pytest.raises(UserError, match=complaint):
        list(batches(source, 6, shuffle_seed=4, rank=place_of(13, epoch_order(20, 4).split(6)) % 2, world=2))
    with pytest.raises(UserError, match="x is nan at position 1 of a batch"):
        list(batches(DataLoader(source, 4, collate_fn=collate), 4))


def place_of(row: int, chunks: tuple[Tensor, ...]) -> int:
    """Return the position of a row in its batch, which determines the process that reads it."""
    return next(chunk.tolist().index(row) for chunk in chunks if row in chunk.tolist())
