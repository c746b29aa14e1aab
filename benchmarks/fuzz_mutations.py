"""Mutations of bytes, text and trees."""

from __future__ import annotations

import random
from typing import Any

LIES = (
    0,
    1,
    -1,
    2,
    7,
    255,
    2**31,
    2**40,
    2**63,
    -(2**63),
    1e308,
    "",
    "x",
    None,
    True,
    [],
    {},
    [[]],
    [0],
    {"a": 0},
    "a/" + "b" * 300,
    "\0",
    "..",
)
TRICKS = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\n",
        b"{",
        b"[" * 50,
        b'"',
        b"'",
        b": ",
        b"- ",
        b"&a ",
        b"*a",
        b"<<: *a",
        b"!!python/none ''",
    ),
    *(b"!!bool x", b"!!timestamp x", b"!!int ''", b"!!binary x", b"2020-99-99", b"1e999", b".nan", b"0x", b"-", b"#"),
    *(
        b"1" * 5000,
        b"../../etc/passwd",
        b"/" + b"a" * 300,
        b"NaN",
        b"Infinity",
        b"\xe2\x80\xa8",
        b"\r",
        b"0b",
        b"1:1:1",
    ),
)


def damage(data: bytes, chooser: random.Random) -> bytes:
    """Flip bits, overwrite bytes, or remove, repeat or insert a block."""
    changed = bytearray(data)
    for _ in range(chooser.choice((1, 1, 2, 8))):
        place = chooser.randrange(len(changed) + 1)
        how = chooser.randrange(5)
        if how == 0 and place < len(changed):
            changed[place] ^= 1 << chooser.randrange(8)
        elif how == 1 and place < len(changed):
            changed[place] = chooser.choice((0, 1, 127, 128, 255))
        elif how == 2:
            del changed[place : place + chooser.choice((1, 4, 64, 4096))]
        elif how == 3:
            changed[place:place] = changed[place : place + chooser.choice((1, 4, 64))]
        else:
            changed[place:place] = chooser.randbytes(chooser.choice((1, 8)))
    return bytes(changed)


def damage_text(data: bytes, chooser: random.Random) -> bytes:
    """Damage bytes, or insert tokens that a parser understands, possibly over the existing text."""
    if chooser.random() < 0.4:
        return damage(data, chooser)
    place = chooser.randrange(len(data) + 1)
    return data[:place] + chooser.choice(TRICKS) + data[place + chooser.choice((0, 0, 1, 8)) :]


def lie(tree: Any, chooser: random.Random) -> None:
    """Replace a value somewhere in a tree of dicts and lists."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in entries:
            places.append((node, key))
            walk(value)

    walk(tree)
    if not places:
        return
    node, key = chooser.choice(places)
    if chooser.random() < 0.2:
        del node[key]
    else:
        node[key] = chooser.choice(LIES)
