"""Text from files cannot control the terminal."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from pocketbayes.base.progress import display
from pocketbayes.base.terminal import SafeConsole, make_safe
from pocketbayes.cli import output
from pocketbayes.reporting.table import bar, table

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31mcat\u202egpj\r\ud800"


def is_safe(text: str) -> bool:
    own_styles = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return not any(character in own_styles for character in "\x1b\x07\x9b\u202e\r\ud800")


def test_make_safe_keeps_text_and_shows_control_characters() -> None:
    assert make_safe("naïve 猫\tcat\n") == "naïve 猫\tcat\n"
    assert make_safe("\x1b[2J\x7f") == "␛[2J\ufffd"
    assert is_safe(make_safe(ATTACK))


def test_console_applies_only_its_own_styles() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, color_system="standard", width=200)
    console.print(output.styled("bold", ATTACK))
    assert "\x1b[1m" in file.getvalue()
    assert "\x1b]" not in file.getvalue()
    assert "\x1b[2J" not in file.getvalue()


def test_console_makes_all_printed_text_safe(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    output.show(ATTACK, table([{"class": ATTACK, "x": 1.0}], title=ATTACK))
    output.show_json({"class": ATTACK})
    output.complain(ATTACK)
    output.note(ATTACK)
    printed = capsys.readouterr()
    assert is_safe(printed.out)
    assert is_safe(printed.err)
    with display(True) as shown:
        shown.begin(ATTACK + "[/red]", 2)
        shown.advance(1, loss=0.5)
        shown.line(ATTACK)
    printed = capsys.readouterr()
    assert "\x1b]0" not in printed.err
    assert "\x1b[2J" not in printed.err


def test_table_shows_control_characters_as_text() -> None:
    nonsense = [float("nan"), float("inf"), None, "text", [1, 2], {"a": 1}, True, 10**400]
    rows = [{"accuracy": value, "nll": value, "bytes": value, "seconds": value} for value in nonsense]
    output.show(table(rows))
    assert bar(float("nan"), 8).strip() == ""
