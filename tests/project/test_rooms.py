"""Storage and propagation are independent, and no other room names one of them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pocketbayes
from pocketbayes.posteriors import POSTERIORS
from pocketbayes.propagation import PROPAGATIONS

PACKAGE = Path(pocketbayes.__file__).parent
STORAGES = {kind.__name__ for kind in POSTERIORS.values() if kind.__module__.startswith("pocketbayes.")}
AMBIGUOUS = {"mean", "moments"}
"""Propagations named like statistics; a comparison counts only next to a word for propagation."""
WORDS = {"propagation", "mode"}


def storages_named(tree: ast.AST) -> Iterator[str]:
    """Return the classes of storages that a module imports or looks up in `posteriors`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pocketbayes.posteriors"):
            yield from (alias.name for alias in node.names if alias.name in STORAGES)
        elif isinstance(node, ast.Attribute) and node.attr in STORAGES and "posteriors" in ast.unparse(node.value):
            yield node.attr


def propagations_compared(tree: ast.AST) -> Iterator[str]:
    """Return the comparisons with the name of a propagation."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        parts = [*ast.walk(node)]
        texts = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
        words = {part.id for part in parts if isinstance(part, ast.Name)}
        words |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
        if texts & (set(PROPAGATIONS) - AMBIGUOUS) or (texts & AMBIGUOUS and words & WORDS):
            yield ast.unparse(node)


def modules(*but: str) -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in but]


def test_rooms_name_no_class_of_a_storage() -> None:
    found = {str(path): [*storages_named(ast.parse(path.read_text()))] for path in modules("posteriors", "methods")}
    assert {path: names for path, names in found.items() if names} == {}


def test_rooms_compare_no_name_of_a_propagation() -> None:
    others = modules("propagation", "methods")
    found = {str(path): [*propagations_compared(ast.parse(path.read_text()))] for path in others}
    assert {path: comparisons for path, comparisons in found.items() if comparisons} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from pocketbayes.posteriors import Posterior, Shared",
        "from pocketbayes.posteriors.sparse import Sparse",
        "isinstance(net.posterior, posteriors.MeanField)",
        "pocketbayes.posteriors.Coded(layout, index)",
    ],
)
def test_storages_are_found_in_a_module(line: str) -> None:
    assert len([*storages_named(ast.parse(line))]) == 1
    assert [*storages_named(ast.parse("from x import Point\nfrom pocketbayes.posteriors import Posterior"))] == []


@pytest.mark.parametrize(
    "line", ['x if name == "linear" else y', 'kind in ("local", "flipout")', 'ask.propagation == "moments"']
)
def test_comparisons_are_found_in_a_module(line: str) -> None:
    assert len([*propagations_compared(ast.parse(line))]) == 1
    assert [*propagations_compared(ast.parse('how == "moments" or role in ("mean", "std")'))] == []


def test_package_has_few_rooms_and_short_files() -> None:
    entries = {path.relative_to(PACKAGE).parts[0] for path in modules()}
    assert len(entries) <= 18
    lengths = {str(path): len(path.read_text().splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_modules_are_not_hidden_by_what_they_hold() -> None:
    """`import a.b as m` looks `b` up in `a`, where a function of that name would hide the module."""
    hidden = []
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("pocketbayes", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        parent, _, last = name.rpartition(".")
        if last != "__main__" and parent and importlib.import_module(name) is not getattr(sys.modules[parent], last):
            hidden.append(name)
    assert hidden == []
    assert pocketbayes.methods() == tuple(pocketbayes.methods.METHODS)
