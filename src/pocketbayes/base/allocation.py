"""Reuse of memory that tensors have freed."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

import torch

KEPT_BLOCK = 31 * 2**20
"""Bytes; glibc adapts to freed blocks of up to 32 MiB."""
KEPT_VECTORS = 8
"""Vectors of all weights that a training process keeps at the end of its heap."""
LARGE_VECTOR = 256 * 2**20
"""Bytes of the largest activations of a command that runs many passes over images of 224 pixels."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""


@cache
def keep_freed_memory() -> None:
    """Have the C library reuse freed blocks, once per process, instead of returning each to the system.

    glibc maps large blocks afresh for every tensor until a block of that size has been freed (mallopt(3),
    M_MMAP_THRESHOLD), and the first touch of a new page costs ten times the arithmetic on it: a training step with
    weight samples ran at half its speed. Freeing one untouched block raises glibc's threshold; the process keeps at
    most 62 MiB more. Other C libraries are unaffected.
    """
    torch.empty(KEPT_BLOCK, dtype=torch.uint8)


@cache
def keep_freed_vectors(size: int) -> None:
    """Have glibc reuse freed blocks above 32 MiB too, for training steps that allocate vectors of `size` bytes.

    A training step of ViT-S with weight samples and few examples spent a sixth of its time on the first touch of new
    pages. The process keeps freed memory for its next tensors. Other C libraries are unaffected.
    """
    if size > KEPT_BLOCK and platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, min(KEPT_VECTORS * size, 2**31 - 1))
        library.mallopt(M_MMAP_MAX, 0)


def keep_freed_activations() -> None:
    """Have a process of its own, such as a command, keep the memory of large activations for its next pass.

    Without it, a pass of EfficientNet-Lite0 over 32 images takes three times as long. Blocks of very different sizes
    fragment the heap, so that the peak of a whole command may be higher.
    """
    keep_freed_vectors(LARGE_VECTOR)
