"""Fixtures shared by every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# No test depends on the clock, and every run tries the same examples; HYPOTHESIS_PROFILE=explore tries others.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a slow machine shows progress must not decide what stderr holds."""
    monkeypatch.setattr("pocketbayes.base.progress.QUIET_SECONDS", float("inf"))
    monkeypatch.setattr("pocketbayes.base.progress.BAR_SECONDS", float("inf"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data, or a skip that says how to get one."""
    folder = os.environ.get("POCKETBAYES_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no real data: set POCKETBAYES_DATA to a folder in torchvision's layout")
    return Path(folder)
