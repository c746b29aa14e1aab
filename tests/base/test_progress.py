"""What a person sees while something takes long, and what other processes must not show."""

from __future__ import annotations

from typing import Any

import pytest

from pocketbayes.base.progress import Bar, Silent, display


@pytest.mark.parametrize(("show", "seen"), [(True, True), ("bar", False)])
def test_lines_above_the_bar_are_shown_as_they_are(show: Any, seen: bool, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with display(show) as bar:
        assert isinstance(bar, Bar)
        bar.begin("first", 2)
        bar.begin("second", 4)  # in place of the one before
        bar.advance(3, loss=0.25)
        assert [(task.description, task.completed, task.total) for task in bar.progress.tasks] == [("second", 3, 4)]
        assert bar.progress.tasks[0].fields["figures"] == "loss 0.25"
        bar.advance()
        assert bar.progress.tasks[0].fields["figures"] == "loss 0.25"  # until there are others
        bar.line("epoch [/1]")
    assert ("epoch [/1]" in capsys.readouterr().err) == seen


def test_nothing_is_shown_to_a_log_or_by_another_process(monkeypatch: Any) -> None:
    with display() as bar:
        assert isinstance(bar, Silent)
    monkeypatch.setenv("RANK", "1")
    with display(True) as bar:
        assert isinstance(bar, Silent)
