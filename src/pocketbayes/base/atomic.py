"""Files that are written whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pocketbayes.base.errors import UserError


def write_atomically(path: str | Path, content: str | bytes | Callable[[Any], object]) -> None:
    """Write a temporary file beside `path`, then rename it.

    Args:
        path: The file.
        content: Its text or bytes, or a function that writes them to an open file.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"cannot write {str(path)!r}: it is a folder")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # open() sets the usual permissions
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with suppress(OSError):  # renamed, or never made
            temporary.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError within the block into a message that names the file and the reason."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def remove_leftovers(path: str | Path) -> None:
    """Remove the temporary files that writers of `path` left behind when they were killed."""
    path = Path(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"):
        leftover.unlink(missing_ok=True)
