"""Results on stdout, for people or, with --json, for programs; everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

PIPE_WIDTH = 160
"""Characters in a line where no terminal says how many it has."""


def show(*things: Any) -> None:
    """Print tables and text for people on stdout; brackets in a name are brackets, not rich's markup."""
    from pocketbayes.base.terminal import SafeConsole

    console = SafeConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for thing in things:
        console.print(thing)


def styled(style: str, text: object, rest: str = "") -> Any:
    """Return a text in a style, and more without."""
    from rich.text import Text

    return Text.assemble((str(text), style), rest)


def show_json(value: Any) -> None:
    """Print the one JSON object of a command on stdout; numbers that JSON does not know become null."""
    sys.stdout.write(json.dumps(_plain(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line on stderr, for people at a terminal only: an error shall be the one line in a log."""
    if sys.stderr.isatty():
        _line("", text, "dim")


def complain(text: str, label: str = "error: ") -> None:
    """Print the one line of an error or a warning on stderr."""
    _line(label, " ".join(text.split()), "")


def _line(label: str, text: str, style: str) -> None:
    from rich.text import Text

    from pocketbayes.base.terminal import SafeConsole

    line = Text.assemble((label, "bold red"), (text, style))
    SafeConsole(stderr=True, highlight=False).print(line, soft_wrap=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
