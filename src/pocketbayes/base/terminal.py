"""Text that is safe to print: names in untrusted files may contain terminal control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline: ESC starts a command
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of the text after them
    "\u2028\u2029\ud800-\udfff]"  # other ends of lines; halves of characters, which cannot be written
)


def make_safe(text: str) -> str:
    """Replace terminal control characters: ESC becomes its picture, others become U+FFFD."""
    return _UNSAFE.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)


class SafeConsole(Console):
    """A console that applies its own styles but never control characters in the text it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render what is printed, each piece of text made safe."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else make_safe(text), style, control)
