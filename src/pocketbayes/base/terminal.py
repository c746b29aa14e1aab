"""Text that is safe to print: names in untrusted files may contain terminal control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline; ESC starts a command
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of the text
    "\u2028\u2029\ud800-\udfff]"  # other line ends; surrogates, which cannot be encoded
)


def make_safe(text: str) -> str:
    """Replace terminal control characters: ESC by its picture, others by U+FFFD."""
    return _UNSAFE.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)


class SafeConsole(Console):
    """A console that applies its own styles but no control characters in the printed text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with all text made safe."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else make_safe(text), style, control)
