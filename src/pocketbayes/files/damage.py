"""Which members of a damaged mixture file are whole."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from pocketbayes.files.pocket import Buffer

SMALLEST = 1 << 12
"""Bytes of the smallest mixture that carries a checksum per member."""


def member_checksums(parts: Mapping[str, Buffer], count: int) -> list[str] | None:
    """Return a checksum of the parts of each member, and one of what they share; None for small files."""
    if sum(map(len, parts.values())) < SMALLEST:
        return None
    sums = [0] * (count + 1)
    for name, data in sorted(parts.items()):
        owner = name.partition(".")[0]
        place = int(owner) if owner.isdecimal() and int(owner) < count else count
        sums[place] = zlib.crc32(data, zlib.crc32(name.encode(), sums[place]))
    return [f"{value:08x}" for value in sums]


def damaged_members(text: Mapping[str, Any], parts: Mapping[str, Buffer]) -> list[int]:
    """Return the numbers of the members that are not what was written; [] where the file does not tell."""
    written, networks = text.get("checksums"), text.get("networks")
    if not isinstance(written, list) or not isinstance(networks, list) or len(written) != len(networks) + 1:
        return []
    found = member_checksums(parts, len(networks))
    if found is None or found[-1] != written[-1]:
        return []
    return [number for number in range(len(networks)) if found[number] != written[number]]
