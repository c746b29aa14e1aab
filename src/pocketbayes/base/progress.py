"""What a person sees while something takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from pocketbayes.base.process_group import is_first

Show = bool | Literal["bar"] | None


class Display(Protocol):
    """A bar that can also print lines above itself."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Moves the bar and shows figures beside it."""

    def begin(self, title: str, total: int) -> None:
        """Starts a new bar."""

    def line(self, text: str) -> None:
        """Prints a line."""


class Silent:
    """For programs and tests."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Shows nothing."""

    def begin(self, title: str, total: int) -> None:
        """Shows nothing."""

    def line(self, text: str) -> None:
        """Shows nothing."""


class Bar:
    """A rich progress bar on stderr."""

    def __init__(self, progress: Any, lines: bool = True) -> None:
        self.progress, self.lines = progress, lines
        self.task: Any = None

    def begin(self, title: str, total: int) -> None:
        """Starts a new bar in place of the one before."""
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self.progress.add_task(title, total=total, figures="")

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Moves the bar."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self.progress.update(self.task, advance=amount, **({"figures": text} if figures else {}))

    def line(self, text: str) -> None:
        """Prints a line above the bar."""
        if self.lines:
            self.progress.console.print(text, highlight=False, markup=False)


@contextmanager
def display(show: Show = None) -> Iterator[Display]:
    """A bar on stderr, of the first process where several work together.

    Args:
        show: Whether to; None for yes if stderr is a terminal, "bar" likewise, but without the lines above the bar.
    """
    if not (is_first() and (sys.stderr.isatty() if show in (None, "bar") else show)):
        yield Silent()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from pocketbayes.base.terminal import SafeConsole

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as progress:
        yield Bar(progress, lines=show != "bar")
