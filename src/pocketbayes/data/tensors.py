"""Conversion of user data to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError


def as_tensor(value: Any, what: str) -> Tensor:
    """Convert an array or nested lists of numbers to a tensor of at least one dimension.

    Args:
        value: The numbers.
        what: Their name in error messages.

    Raises:
        UserError: If they are not real numbers, or not a dense tensor in memory.
    """
    if isinstance(value, np.ndarray) and any(stride < 0 for stride in value.strides):
        value = value.copy()  # torch has no negative strides
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).partition(". ")[0]
        raise UserError(f"{what} cannot be read as numbers ({reason}): give a tensor, or an array of numbers") from None
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UserError(f"{what} are a tensor of layout {tensor.layout} and type {tensor.dtype}: give a dense one")
    if tensor.is_meta:
        raise UserError(f"{what} lie on the meta device, where tensors have no values")
    if tensor.is_complex():
        raise UserError(f"{what} are complex numbers: give real ones")
    if tensor.ndim == 0:
        raise UserError(f"{what} are a single number: give an array whose first dimension counts the examples")
    return tensor
