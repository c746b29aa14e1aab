"""Classes, functions or objects that are registered by name when they are defined, by us or by a user."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from pocketbayes.base.errors import UnknownNameError, UserError

HINT = "import the module that defines it first (--import on the command line); "

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Classes of one kind, or one object of each, by their `name`."""

    def __init__(self, kind: str) -> None:
        """Take the word for such a class in messages, for example "storage"."""
        super().__init__()
        self.kind = kind

    def join(self, name: str, entry: Entry) -> None:
        """Add an entry; a class that is redefined, as in a notebook, replaces the previous one."""
        known = self.get(name)
        if known is not None and _path(known) != _path(entry):
            raise UserError(f"the {self.kind} name {name!r} is taken by {_path(known)}: give {_path(entry)} another")
        self[name] = entry

    def __missing__(self, name: str) -> Entry:
        """Reject an unknown name, perhaps one whose module was not imported."""
        raise UnknownNameError(self.kind, str(name), tuple(self), HINT)


def _path(entry: object) -> str:
    entry = entry.func if isinstance(entry, partial) else entry
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}.{named.__qualname__}"
