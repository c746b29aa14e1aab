"""Storage and propagation are independent, and no other room names one of them."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pocketbayes
from pocketbayes.base import run_folder
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


def seed_arithmetic(tree: ast.AST) -> Iterator[str]:
    """Return the calculations that derive a seed from another."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            sides = {ast.unparse(side).rpartition(".")[2] for side in (node.left, node.right)}
            if any(side == "seed" or side.endswith("_seed") for side in sides):
                yield ast.unparse(node)


def names_used(tree: ast.AST) -> set[str]:
    """Return the names and attributes that a module uses."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_seeds_are_derived_in_one_module() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in modules() if [*seed_arithmetic(ast.parse(path.read_text()))]}
    assert found - {"base/randomness.py"} == {"base/seeds.py"}  # `randomness` reduces a seed to 64 bits
    assert [*seed_arithmetic(ast.parse("make(self.base_seed + 1, 2 * run.seed)"))] != []


def test_tensors_are_digested_in_one_module() -> None:
    found = {
        str(path.relative_to(PACKAGE)) for path in modules() if "blake2b" in names_used(ast.parse(path.read_text()))
    }
    assert found == {"base/digests.py"}


def test_run_files_are_named_in_one_module() -> None:
    files = {value for name, value in vars(run_folder).items() if name.endswith("_FILE")}
    found = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in files
    }
    assert len(files) > 5
    assert found == {"base/run_folder.py"}


def nulls_for_nan(tree: ast.AST) -> Iterator[str]:
    """Return the expressions that replace NaN or infinity by None."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.IfExp) or not re.search(r"isfinite|isnan|\binf\b", ast.unparse(node.test)):
            continue
        if any(isinstance(side, ast.Constant) and side.value is None for side in (node.body, node.orelse)):
            yield ast.unparse(node)


def test_nan_becomes_null_in_one_module() -> None:
    found = {str(path): [*nulls_for_nan(ast.parse(path.read_text()))] for path in modules()}
    assert {path: lines for path, lines in found.items() if lines} == {}  # `base/plain.py` uses statements
    assert [*nulls_for_nan(ast.parse("x = None if nll == float('inf') else nll"))] != []


def fields_of(node: ast.ClassDef) -> set[str]:
    return {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def test_settings_of_a_question_are_one_class() -> None:
    found = {
        node.name
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and {"samples", "propagation", "seed", "batch_size"} <= fields_of(node)
    }
    assert found == {"Ask"}


def test_stage_hooks_are_called_by_the_loop_alone() -> None:
    """Other rooms pass hooks on, as an ensemble does to its members."""
    hooks = {"begin", "end", "step", "after_step", "after_epoch"}
    found = {
        str(path.relative_to(PACKAGE))
        for path in modules("methods")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in hooks and ast.unparse(node.value).endswith("stage")
    }
    assert found == {"training/loop.py", "training/run.py"}


def test_import_contract_covers_every_module() -> None:
    contract = (
        (PACKAGE.parents[1] / "pyproject.toml")
        .read_text()
        .partition("[tool.importlinter]")[2]
        .partition("[tool.ruff]")[0]
    )
    layers = {name for line in re.findall(r'^  "(.*)",$', contract, re.MULTILINE) for name in line.split(" | ")}
    entries = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert entries - {"__init__"} == layers
    assert "ignore" not in contract
