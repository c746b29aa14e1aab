"""Reuse of memory that tensors have freed."""

from __future__ import annotations

from functools import cache

import torch

KEPT_BLOCK = 31 * 2**20
"""Bytes; glibc adapts to freed blocks of up to 32 MiB."""


@cache
def keep_freed_memory() -> None:
    """Have the C library reuse freed blocks, once per process, instead of returning each to the system.

    glibc maps large blocks afresh for every tensor until a block of that size has been freed (mallopt(3),
    M_MMAP_THRESHOLD), and the first touch of a new page costs ten times the arithmetic on it: a training step with
    weight samples ran at half its speed. Freeing one untouched block raises glibc's threshold; the process keeps at
    most 62 MiB more. Other C libraries are unaffected.
    """
    torch.empty(KEPT_BLOCK, dtype=torch.uint8)
