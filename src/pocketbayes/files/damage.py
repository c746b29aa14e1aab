"""Selected members of a mixture file: the intact ones, or the first."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pocketbayes.files.pocket import Buffer

MIXTURE_SETTINGS = ("weights", "stopping")
MIN_CHECKED_BYTES = 1 << 12
"""Smallest size in bytes of a mixture with a checksum per member."""


def member_checksums(parts: Mapping[str, Buffer], count: int) -> list[str] | None:
    """Return checksums of each member's parts and of the shared parts; None for small files."""
    if sum(map(len, parts.values())) < MIN_CHECKED_BYTES:
        return None
    sums = [0] * (count + 1)
    for name, data in sorted(parts.items()):
        owner = name.partition(".")[0]
        place = int(owner) if owner.isdecimal() and int(owner) < count else count
        sums[place] = zlib.crc32(data, zlib.crc32(name.encode(), sums[place]))
    return [f"{value:08x}" for value in sums]


def mixture_settings(text: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """Return a mixture's settings for the selected members."""
    found = {name: text[name] for name in MIXTURE_SETTINGS if name in text}
    if len(kept) < len(text["networks"]):
        found.pop("stopping", None)  # fitted for all members
        if "weights" in found:
            weights = [found["weights"][number] for number in kept]
            found["weights"] = [weight / sum(weights) for weight in weights]
    return found


def damaged_members(text: Mapping[str, Any], parts: Mapping[str, Buffer]) -> list[int]:
    """Return the indices of damaged members; empty if the file has no checksums per member."""
    written, networks = text.get("checksums"), text.get("networks")
    if not isinstance(written, list) or not isinstance(networks, list) or len(written) != len(networks) + 1:
        return []
    found = member_checksums(parts, len(networks))
    if found is None or found[-1] != written[-1]:
        return []
    return [number for number in range(len(networks)) if found[number] != written[number]]
