"""BLAKE2b digests of bytes and tensors: checksums of files, and fingerprints of networks and data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

SIZE = 16
"""Bytes of a digest."""


def new_digest(head: bytes = b"", size: int = SIZE) -> hashlib.blake2b:
    """Return a digest of `size` bytes that begins with `head`."""
    return hashlib.blake2b(head, digest_size=size)


def take_in(digest: hashlib.blake2b, tensor: Tensor) -> None:
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
    digest = new_digest(head.encode())
    for name, tensor in tensors:
        digest.update(name.encode())
        take_in(digest, tensor)
    return digest.hexdigest()
