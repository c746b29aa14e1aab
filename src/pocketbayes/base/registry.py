"""Classes that are known by name as soon as they are defined, the package's own and a user's alike."""

from __future__ import annotations

from typing import TypeVar

from pocketbayes.base.errors import UnknownNameError, UserError

Class = TypeVar("Class", bound=type)


class Registry(dict[str, Class]):
    """Classes of one kind by their `name`."""

    def __init__(self, kind: str) -> None:
        """Take what messages call such a class, for example "storage"."""
        super().__init__()
        self.kind = kind

    def join(self, name: str, cls: Class) -> None:
        """Add a class; one that is defined again, as in a notebook, replaces its former self.

        Raises:
            UserError: If another class has the name.
        """
        known = self.get(name)
        if known is not None and _path(known) != _path(cls):
            raise UserError(f"the {self.kind} name {name!r} is taken by {_path(known)}: give {_path(cls)} another")
        self[name] = cls

    def find(self, name: str) -> Class:
        """Return the class of a name.

        Raises:
            UnknownNameError: If no class has it, or if the module that defines it was not imported.
        """
        if name not in self:
            raise UnknownNameError(self.kind, name, self, "import the module that defines it first; ")
        return self[name]


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
