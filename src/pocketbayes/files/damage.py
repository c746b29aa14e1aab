"""Some of the members of a mixture file: those that are whole, or the first."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pocketbayes.files.pocket import Buffer

MIXTURE_SETTINGS = ("weights", "stopping")
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


def mixture_settings(text: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """Return what a file says of a mixture as a whole, for the members of these numbers."""
    found = {name: text[name] for name in MIXTURE_SETTINGS if name in text}
    if len(kept) < len(text["networks"]):
        found.pop("stopping", None)  # fitted for all of them
        if "weights" in found:
            weights = [found["weights"][number] for number in kept]
            found["weights"] = [weight / sum(weights) for weight in weights]
    return found


def damaged_members(text: Mapping[str, Any], parts: Mapping[str, Buffer]) -> list[int]:
    """Return the numbers of the members that are not what was written; [] where the file does not tell."""
    written, networks = text.get("checksums"), text.get("networks")
    if not isinstance(written, list) or not isinstance(networks, list) or len(written) != len(networks) + 1:
        return []
    found = member_checksums(parts, len(networks))
    if found is None or found[-1] != written[-1]:
        return []
    return [number for number in range(len(networks)) if found[number] != written[number]]
