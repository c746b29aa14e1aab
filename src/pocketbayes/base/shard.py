"""Independent jobs: which of many things each of N machines does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pocketbayes.base.errors import UserError


@dataclass(frozen=True)
class Shard:
    """Job i of N, counted from 1: it takes every N-th thing, from the i-th on.

    Attributes:
        number: i.
        of: N.
    """

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise UserError(f"shard {self.number}/{self.of}: jobs are numbered from 1/{self.of} to {self.of}/{self.of}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "i/N".

        Raises:
            UserError: If it is none.
        """
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None:
            raise UserError(f"shard {text!r}: give the number of the job and how many there are, such as 1/4")
        return cls(int(found[1]), max(int(found[2]), 1))

    @property
    def name(self) -> str:
        """For files and folders."""
        return f"shard-{self.number}-of-{self.of}"

    def takes(self, index: int) -> bool:
        """Whether the thing with this number, from 0, is this job's."""
        return index % self.of == self.number - 1
