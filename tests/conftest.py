"""Fixtures and options shared by every test."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from pocketbayes.data.registry import LOADERS
from pocketbayes.likelihoods import LIKELIHOODS
from pocketbayes.methods import METHODS
from pocketbayes.posteriors import POSTERIORS
from pocketbayes.propagation import PROPAGATIONS
from pocketbayes.propagation.moments.table import RULES

# No test depends on the clock, and every run tries the same examples; HYPOTHESIS_PROFILE=explore tries others.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

NUMERICAL_FOLDERS = ("posteriors", "propagation", "plane")
"""Tests here, and those that train with a `learning_seed`, are marked `numerics`: rounding reaches them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=1, help="run tests that assert learning with this many seeds")
    parser.addoption("--seed", type=int, default=0, help="torch's seed before every test; any seed must pass")
    parser.addoption("--shuffle", type=int, default=None, help="run folders, files and tests in this seed's order")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "learning_seed" in metafunc.fixturenames:
        seeds = range(metafunc.config.getoption("--seeds"))
        metafunc.parametrize("learning_seed", seeds, ids=lambda n: f"seed{n}", scope="module")  # fixtures take it too


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        learns = "learning_seed" in getattr(item, "fixturenames", ())
        if learns:
            item.add_marker("learns")
        if learns or item.path.parent.name in NUMERICAL_FOLDERS:
            item.add_marker("numerics")
    seed = config.getoption("--shuffle")
    if seed is not None:  # grouped by folder and file, so that module fixtures are created once
        chooser = random.Random(seed)
        places = {path: chooser.random() for item in items for path in (item.path.parent, item.path)}
        items.sort(key=lambda item: (places[item.path.parent], places[item.path], chooser.random()))


def pytest_configure(config: pytest.Config) -> None:
    torch.manual_seed(config.getoption("--seed"))  # for draws during collection


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(request.config.getoption("--seed"))


@pytest.fixture(autouse=True)
def _no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable progress lines, so that stderr does not depend on the machine's speed."""
    monkeypatch.setattr("pocketbayes.base.progress.QUIET_SECONDS", float("inf"))
    monkeypatch.setattr("pocketbayes.base.progress.BAR_SECONDS", float("inf"))


@pytest.fixture(autouse=True)
def _registries_as_they_were() -> Iterator[None]:
    """Undo a test's registrations, so that tests do not depend on their order."""
    registries: tuple[dict[Any, Any], ...] = (LOADERS, LIKELIHOODS, METHODS, POSTERIORS, PROPAGATIONS, RULES)
    before = [dict(registry) for registry in registries]
    yield
    for registry, old in zip(registries, before):
        for name, entry in list(registry.items()):
            module = getattr(entry, "__module__", "")
            if name in old:
                registry[name] = old[name]
            elif not module.startswith("pocketbayes."):  # parts of the package may be imported later
                del registry[name]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder with real data, or skip the test with instructions."""
    folder = os.environ.get("POCKETBAYES_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no real data: set POCKETBAYES_DATA to a folder in torchvision's layout")
    return Path(folder)
