"""Output: results on stdout, as tables or JSON; everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from pocketbayes.base.plain import finite

PIPE_WIDTH = 160
"""Width of lines that do not go to a terminal."""


def show(*things: Any) -> None:
    """Print tables and text on stdout, without interpreting brackets as rich's markup."""
    from pocketbayes.base.terminal import SafeConsole

    console = SafeConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for thing in things:
        console.print(thing)


def styled(style: str, text: object, rest: str = "") -> Any:
    """Return styled text followed by plain text."""
    from rich.text import Text

    return Text.assemble((str(text), style), rest)


def show_json(value: Any) -> None:
    """Print the JSON object of a command on stdout, with null for NaN and infinity."""
    sys.stdout.write(json.dumps(finite(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line on stderr if it is a terminal, so that logs contain only errors."""
    if sys.stderr.isatty():
        _line("", text, "dim")


def log(text: str) -> None:
    """Print a line on stderr, in logs too: a step of long work."""
    _line("", text, "dim")


def complain(text: str, label: str = "error: ") -> None:
    """Print an error or a warning as one line on stderr."""
    _line(label, " ".join(text.split()), "")


def _line(label: str, text: str, style: str) -> None:
    from rich.text import Text

    from pocketbayes.base.terminal import SafeConsole

    line = Text.assemble((label, "bold red"), (text, style))
    SafeConsole(stderr=True, highlight=False).print(line, soft_wrap=True)
