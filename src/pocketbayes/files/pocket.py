"""The frame of a .pocket file: a safetensors file of named bytes with JSON text and a checksum (see docs/format.md).

It is written and read byte by byte, so that equal networks give equal files and no memory is allocated for sizes that
an untrusted file claims. Mixtures also have a checksum per member, so that the intact members of a damaged file can be
used.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.digests import new_digest
from pocketbayes.base.errors import UserError
from pocketbayes.files.container import METADATA

Buffer = bytes | memoryview

FORMAT = "pocketbayes-2"
LARGEST_HEADER = 1 << 22
MOST_PARTS = 1 << 14
_CHECKSUM = re.compile(rb'"checksum":"([0-9a-f]{32})"')
_BLANK = b"0" * 32
MIXTURE_SETTINGS = ("weights", "stopping")
MIN_CHECKED_BYTES = 1 << 12
"""Smallest size in bytes of a mixture with a checksum per member."""


class DamagedFileError(UserError):
    """A file whose checksum does not match, with its contents."""

    def __init__(self, message: str, text: dict[str, Any], parts: dict[str, Buffer]) -> None:
        super().__init__(message)
        self.text, self.parts = text, parts


def write(path: str | Path, text: Mapping[str, Any], parts: Mapping[str, bytes]) -> int:
    """Write a file atomically and return its size in bytes."""
    data = assemble(text, parts)
    write_atomically(path, data)
    return len(data)


def assemble(text: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """Return the file's bytes."""
    metadata = {METADATA: _compact({"format": FORMAT, **text}), "checksum": _BLANK.decode()}
    header: dict[str, Any] = {"__metadata__": metadata}
    place = 0
    for name, data in parts.items():
        offsets = [place, place + len(data)]
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": offsets}
        place += len(data)
    front = _compact(header).encode()
    if len(front) > LARGEST_HEADER or len(parts) > MOST_PARTS:
        raise UserError(f"too many layers for one file: {len(parts)} parts, a header of {len(front)} bytes")
    front += b" " * (-len(front) % 8)
    whole = [len(front).to_bytes(8, "little"), front, *parts.values()]
    place = front.index(_BLANK, front.index(b'"checksum":"'))
    whole[1] = front[:place] + _digest(whole).encode() + front[place + len(_BLANK) :]
    return b"".join(whole)


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Buffer]]:
    """Return the text and the parts of a file."""
    path = Path(path)
    header, size = read_header(path)
    text, places = _understand(path, header, size)  # before reading the rest, since a foreign file may be huge
    found = _CHECKSUM.search(header)
    zeroed = b"" if found is None else header[: found.start(1)] + _BLANK + header[found.end(1) :]
    digest = new_digest(len(header).to_bytes(8, "little") + zeroed)
    parts: dict[str, Buffer] = {}
    try:
        with path.open("rb") as file:
            file.seek(8 + len(header))
            for name, (begin, end) in places.items():
                parts[name] = data = file.read(end - begin)
                digest.update(data)
            changed = bool(file.read(1)) or sum(map(len, parts.values())) != size - 8 - len(header)
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    if changed or found is None or found.group(1).decode() != digest.hexdigest():
        message = f"{str(path)!r} is damaged: its checksum does not match; get another copy"
        raise DamagedFileError(message, text, parts)
    return text, parts


def sizes(path: str | Path) -> dict[str, int]:
    """Return the bytes of each part, and of the header."""
    path = Path(path)
    header, size = read_header(path)
    places = _understand(path, header, size)[1]
    return {"header": 8 + len(header), **{name: end - begin for name, (begin, end) in places.items()}}


def read_header(path: str | Path) -> tuple[bytes, int]:
    """Return the header's JSON and the file size of any safetensors file."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no file {str(path)!r}")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LARGEST_HEADER):
                raise UserError(f"{str(path)!r} is not a pocketbayes file, or its header is cut off")
            return file.read(length), size
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


def format_of(path: Path, header: bytes) -> str:
    """Return the format in a header."""
    return str(_metadata(path, _json(path, header)).get("format"))


def _understand(path: Path, header: bytes, size: int) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Return the text and the offsets of the parts, which must be contiguous and fill the file."""
    fields = _json(path, header)
    text = _metadata(path, fields)
    if text.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} has format {text.get('format')!r}; this version reads {FORMAT!r}")
    entries = {name: entry for name, entry in fields.items() if name != "__metadata__"}
    if len(entries) > MOST_PARTS:
        raise UserError(f"{str(path)!r} is not a readable pocketbayes file: it has {len(entries)} parts")
    places, place = {}, 0
    for name, entry in entries.items():
        begin, end = _offsets(path, name, entry)
        if begin != place or end < begin:
            raise UserError(f"{str(path)!r} is not a readable pocketbayes file: {name!r} is at the wrong position")
        places[name], place = (begin, end), end
    if 8 + len(header) + place != size:
        raise UserError(f"{str(path)!r} is truncated or has extra bytes: get another copy")
    return text, places


def _offsets(path: Path, name: str, entry: Any) -> tuple[int, int]:
    try:
        (begin, end), (length,) = entry["data_offsets"], entry["shape"]
        if entry["dtype"] == "U8" and type(begin) is type(end) is type(length) is int and end - begin == length:
            return begin, end
    except (KeyError, TypeError, ValueError):
        pass
    raise UserError(f"{str(path)!r} is not a readable pocketbayes file: {name!r} is not a row of bytes")


def _metadata(path: Path, fields: dict[str, Any]) -> dict[str, Any]:
    metadata = fields.get("__metadata__")
    text = metadata.get(METADATA) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise UserError(f"{str(path)!r} is not a pocketbayes file: it has no {METADATA!r} in its metadata")
    return _json(path, text.encode())


def _json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{str(path)!r} is not a readable pocketbayes file: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} is not a readable pocketbayes file: its header is not a mapping")
    return value


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _digest(pieces: Iterable[Buffer]) -> str:
    """Return the BLAKE2b digest of the file with zeros for the digits of the checksum."""
    digest = new_digest()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


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
