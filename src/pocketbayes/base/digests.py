"""The bytes of tensors, from which every digest is made."""

from __future__ import annotations

import torch
from torch import Tensor


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return a tensor's values in order, as bytes; nothing for an empty one, whose strides may forbid a view."""
    if not tensor.numel():
        return b""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
