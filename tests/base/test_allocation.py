"""Reuse of freed memory by the C library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pocketbayes.base import allocation
from pocketbayes.base.allocation import KEPT_BLOCK, KEPT_VECTORS, M_MMAP_MAX, M_TRIM_THRESHOLD


@pytest.mark.parametrize(("library", "size"), [("glibc", KEPT_BLOCK), ("", 2 * KEPT_BLOCK)])
def test_small_vectors_and_other_libraries_change_nothing(
    monkeypatch: pytest.MonkeyPatch, library: str, size: int
) -> None:
    assert requests(monkeypatch, library, size) == []


def test_large_vectors_are_kept_within_the_range_of_an_int(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * KEPT_BLOCK
    assert requests(monkeypatch, "glibc", size) == [(M_TRIM_THRESHOLD, KEPT_VECTORS * size), (M_MMAP_MAX, 0)]
    assert requests(monkeypatch, "glibc", 2**40) == [(M_TRIM_THRESHOLD, 2**31 - 1), (M_MMAP_MAX, 0)]


def test_activations_of_a_command_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(allocation, "keep_freed_vectors", asked.append)
    allocation.keep_freed_activations()
    assert asked[0] > 32 * 3 * 224 * 224 * 4  # a batch of photographs, and wider activations


def requests(monkeypatch: pytest.MonkeyPatch, library: str, size: int) -> list[tuple[int, int]]:
    """The calls of mallopt for vectors of a size."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(allocation.platform, "libc_ver", lambda: (library, ""))
    monkeypatch.setattr(
        allocation.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *pair: calls.append(pair))
    )
    allocation.keep_freed_vectors.__wrapped__(size)
    return calls
