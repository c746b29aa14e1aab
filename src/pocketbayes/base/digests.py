"""Digests of tensors: of their bytes, with or without their type and shape."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

SIZE = 16
"""Bytes of a digest."""


def take_in(digest: Any, tensor: Tensor) -> None:
    """Add the type, the shape and the values of a tensor to a digest."""
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor_bytes(tensor))


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return a tensor's values in order, as bytes; an empty tensor's strides may not allow a view."""
    if not tensor.numel():
        return b""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest_tensors(tensors: Iterable[tuple[str, Tensor]], head: str = "") -> str:
    """Return the digest of a text followed by named tensors in the given order."""
    digest = hashlib.blake2b(head.encode(), digest_size=SIZE)
    for name, tensor in tensors:
        digest.update(name.encode())
        take_in(digest, tensor)
    return digest.hexdigest()
