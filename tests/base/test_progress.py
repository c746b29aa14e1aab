"""Progress lines on terminals, in logs and in other processes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pocketbayes.base.progress import Bar, Log, Silent, display, time_left


@pytest.mark.parametrize(("show", "seen"), [(True, True), ("bar", False)])
def test_display_prints_lines_above_the_bar(show: Any, seen: bool, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with display(show) as bar:
        assert isinstance(bar, Bar)
        bar.begin("first", 2)
        bar.begin("second", 4)  # replaces the previous line
        bar.advance(3, loss=0.25)
        assert [(task.description, task.completed, task.total) for task in bar.progress.tasks] == [("second", 3, 4)]
        assert bar.progress.tasks[0].fields["figures"] == "loss 0.25"
        bar.advance()
        assert bar.progress.tasks[0].fields["figures"] == "loss 0.25"  # until there are others
        bar.line("epoch [/1]")
    assert ("epoch [/1]" in capsys.readouterr().err) == seen


def test_display_is_silent_when_nested_or_not_first(monkeypatch: Any) -> None:
    with display() as outer, display(True) as inner:
        assert isinstance(outer, Log)
        assert isinstance(inner, Silent)
    monkeypatch.setenv("RANK", "1")
    with display(True) as bar:
        assert isinstance(bar, Silent)


def test_log_prints_time_left_for_long_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbayes.base.progress.QUIET_SECONDS", 2.0)
    monkeypatch.setattr("pocketbayes.base.progress.BAR_SECONDS", 10.0)
    now = 0.0
    log = Log(clock=lambda: now)
    log.line("epoch 1")
    assert capsys.readouterr().err == ""  # too short to be worth a line
    now = 3.0
    log.line("epoch 2")
    log.line("epoch 3")
    assert capsys.readouterr().err == "epoch 2\n"
    log.begin("compress", 10)
    now = 23.0
    log.advance(4)
    assert capsys.readouterr().err == "compress 4/10, 30 s left\n"
    log.line("the end")
    log.close()
    assert capsys.readouterr().err == "the end\n"


def test_log_is_silent_for_quick_work(capsys: pytest.CaptureFixture[str]) -> None:
    with display() as log:
        log.line("epoch 1")
    assert capsys.readouterr().err == ""


def test_log_reports_first_progress_after_two_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbayes.base.progress.QUIET_SECONDS", 2.0)
    monkeypatch.setattr("pocketbayes.base.progress.BAR_SECONDS", 10.0)
    now = 0.0
    log = Log(clock=lambda: now)
    log.begin("evaluate", 100)
    now = 3.0
    log.advance(30)
    assert capsys.readouterr().err == "evaluate 30/100, 7 s left\n"
    now = 6.0
    log.advance(30)
    assert capsys.readouterr().err == ""  # from then on every ten seconds


def test_log_counts_work_that_follows_in_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbayes.base.progress.QUIET_SECONDS", 2.0)
    now = 0.0
    log = Log(clock=lambda: now)
    log.begin("train epoch 1/3, batch", 10, 20)
    now = 5.0
    log.advance(5)
    assert capsys.readouterr().err == "train epoch 1/3, batch 5/10, 25 s left\n"


def test_display_names_work_whose_first_part_is_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbayes.base.progress.QUIET_SECONDS", 0.2)
    with display() as log:
        log.begin("compress", 9)
        deadline = time.monotonic() + 60
        shown = ""
        while not shown and time.monotonic() < deadline:
            time.sleep(0.01)
            shown = capsys.readouterr().err
    assert shown == "compress 0/9\n"


@pytest.mark.parametrize(("seconds", "words"), [(12, "12 s left"), (600, "10 min left"), (7200, "2.0 h left")])
def test_time_left_is_rough(seconds: float, words: str) -> None:
    assert time_left(seconds) == words
