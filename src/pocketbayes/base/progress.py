"""Progress of long work: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from pocketbayes.base.process_group import is_first

Show = bool | Literal["bar"] | None
QUIET_SECONDS = 2.0
LINE_SECONDS = 1.0
BAR_SECONDS = 10.0


class Display(Protocol):
    """A bar that can also print lines above itself."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Move the bar and show figures beside it."""

    def begin(self, title: str, total: int, after: int = 0) -> None:
        """Start a new bar; `after` is the amount of equal work that follows it, for the time left."""

    def line(self, text: str) -> None:
        """Print a line."""


class Silent:
    """A display that shows nothing, for programs and tests."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Show nothing."""

    def begin(self, title: str, total: int, after: int = 0) -> None:
        """Show nothing."""

    def line(self, text: str) -> None:
        """Show nothing."""


class Bar:
    """A rich progress bar on stderr."""

    def __init__(self, progress: Any, lines: bool = True) -> None:
        self.progress, self.lines = progress, lines
        self.task: Any = None

    def begin(self, title: str, total: int, after: int = 0) -> None:
        """Start a new bar in place of the one before."""
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self.progress.add_task(title, total=total, figures="")

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Move the bar."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self.progress.update(self.task, advance=amount, **({"figures": text} if figures else {}))

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        if self.lines:
            self.progress.console.print(text, highlight=False, markup=False)


class Log:
    """Log lines on stderr where it is not a terminal: one per epoch, and progress every few seconds.

    Work that takes less than `QUIET_SECONDS` prints nothing.
    """

    def __init__(self, lines: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.lines, self.clock, self.lock = lines, clock, threading.RLock()
        self.begun = self.said = clock()
        self.waiting: str | None = None
        self.begin("", 0)

    def begin(self, title: str, total: int, after: int = 0) -> None:
        """Restart the count."""
        self.title, self.total, self.after, self.done, self.start = title, total, after, 0, self.clock()
        if self.start - self.begun >= QUIET_SECONDS:
            self.show_life()

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Log the progress if nothing was logged for a while."""
        self.done += amount
        pause = QUIET_SECONDS if self.said == self.begun else BAR_SECONDS  # the first sign of life comes sooner
        if self.clock() - self.said >= pause and 0 < self.done < self.total:
            left = (self.clock() - self.start) / self.done * (self.total + self.after - self.done)
            self._say(f"{self.title} {self.done}/{self.total}, {time_left(left)}")

    def line(self, text: str) -> None:
        """Print a line, at most one per second; later ones replace a pending line."""
        if not self.lines:
            return
        self.waiting = text
        now = self.clock()
        if now - self.begun >= QUIET_SECONDS and now - self.said >= LINE_SECONDS:
            self._say(text)

    def show_life(self) -> None:
        """Name the running work if nothing was logged yet: its first part may take long."""
        with self.lock:
            if self.said == self.begun and self.title:
                self._say(f"{self.title} {self.done}/{self.total}")

    def close(self) -> None:
        """Print the pending line if the work took long enough."""
        if self.waiting is not None and self.clock() - self.begun >= QUIET_SECONDS:
            self._say(self.waiting)

    def _say(self, text: str) -> None:
        from pocketbayes.base.terminal import make_safe

        with self.lock:
            print(make_safe(text), file=sys.stderr, flush=True)  # noqa: T201
            self.said, self.waiting = self.clock(), None


def time_left(seconds: float) -> str:
    """Return a rough time in words."""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


_SHOWING: list[Display] = []
"""The display of the outermost task; nested tasks, such as an evaluation after an epoch, show nothing."""


@contextmanager
def display(show: Show = None) -> Iterator[Display]:
    """Show progress on stderr: a bar on a terminal, lines elsewhere, nothing for nested tasks.

    Of several processes, only the first shows it.

    Args:
        show: False for nothing; "bar" for a bar without lines above it; True for a bar even where stderr is not a
            terminal.
    """
    if show is False or _SHOWING or not is_first():
        yield Silent()
        return
    with _bar(show != "bar") if show is True or sys.stderr.isatty() else _log(show != "bar") as shown:
        _SHOWING.append(shown)
        try:
            yield shown
        finally:
            _SHOWING.pop()


@contextmanager
def _log(lines: bool) -> Iterator[Log]:
    log = Log(lines)
    timer = threading.Timer(min(QUIET_SECONDS, threading.TIMEOUT_MAX), log.show_life)
    timer.daemon = True
    timer.start()
    try:
        yield log
    finally:
        timer.cancel()
    log.close()


@contextmanager
def _bar(lines: bool) -> Iterator[Bar]:
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
        yield Bar(progress, lines=lines)
