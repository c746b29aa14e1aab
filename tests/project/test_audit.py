"""The dependency audit: known licences, no GPL, pinned versions, and a current page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("the audit reads pyproject.toml with tomllib, which Python 3.10 lacks", allow_module_level=True)
audit = __import__("audit")


def test_audit_finds_nothing_wrong() -> None:
    rows, wrong = audit.audit()
    assert wrong == []
    assert {"torch", "safetensors", "pyyaml", "timm", "matplotlib"} <= rows.keys()
    if sys.platform == "linux" and sys.version_info[:2] == (3, 11):  # as in CI: elsewhere torch needs other packages
        assert audit.PAGE.read_text() == audit.page(rows), "run tools/audit.py"


@pytest.mark.parametrize("terms", ["GPL-3.0-or-later", "GNU General Public License v3", "AGPL-3.0", "MIT AND GPL"])
def test_audit_finds_the_gpl(terms: str) -> None:
    (problem,) = [line for line in audit.problems({"blitz": ("1", terms, "core")}, audit.declared()) if "blitz" in line]
    assert "must not import it" in problem


@pytest.mark.parametrize("terms", ["LGPL-3.0", "GNU Lesser General Public License v3", "MIT", "BSD License"])
def test_audit_passes_other_licences(terms: str) -> None:
    assert audit.problems({"numpy": ("1", terms, "core")}, audit.declared()) == []


def test_audit_finds_licences_pins_and_imports(tmp_path: Path) -> None:
    problems = audit.problems({"numpy": ("", None, "core")}, {"": []})
    assert "numpy has no licence that is known" in problems[0]
    assert "numpy is not pinned" in problems[1]
    assert "the source imports torch, which pyproject.toml does not declare" in problems
    (tmp_path / "a.py").write_text("import os, blitz.layers\nfrom ivon import IVON\nfrom . import b\n")
    assert audit.imported(tmp_path) == {"blitz", "ivon"}
