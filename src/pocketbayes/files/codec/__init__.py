"""Compression of numbers: integers by entropy coding, floats by byte or in steps (see docs/format.md).

A sequence has segments (a network's layers) with separate statistics. The decoder uses integer arithmetic only, so that
files have the same meaning on every machine.
"""

from __future__ import annotations

from pocketbayes.files.codec.bits import Bytes, CodecError
from pocketbayes.files.codec.contexts import pack_codes, unpack_codes
from pocketbayes.files.codec.integers import pack_ints, unpack_ints
from pocketbayes.files.codec.values import (
    fold,
    pack_exactly,
    pack_in_steps,
    pack_positions,
    unfold,
    unpack_exactly,
    unpack_in_steps,
    unpack_positions,
)

__all__ = [
    "Bytes",
    "CodecError",
    "fold",
    "pack_codes",
    "pack_exactly",
    "pack_in_steps",
    "pack_ints",
    "pack_positions",
    "unfold",
    "unpack_codes",
    "unpack_exactly",
    "unpack_in_steps",
    "unpack_ints",
    "unpack_positions",
]
