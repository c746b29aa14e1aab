"""README and docs: code runs, and tables match the results."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def test_readme_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), namespace)
    one, three = (tmp_path / f"{name}.pocket" for name in ("digits", "ensemble"))
    assert three.stat().st_size < one.stat().st_size


@pytest.mark.parametrize("page", ["index.md", "trust.md", "convert.md"])
def test_docs_python_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    if importlib.util.find_spec("transformers") is None:  # not in any of our extras
        blocks = [block for block in blocks if "from transformers" not in block]
    assert blocks
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), page, "exec"), {})


def test_docs_tables_match_their_results() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_docs_pages_are_all_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in nav, page


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs" / "methods").glob("*.md")))
def test_docs_equations_point_at_existing_code(page: str) -> None:
    text = (ROOT / "docs" / "methods" / page).read_text()
    source = ROOT / "src" / "pocketbayes"
    pointed = re.findall(r"`([\w/]+\.py)`((?:, `[\w.]+`)*)", text)
    assert pointed
    for file, names in pointed:
        path = next((root / file for root in (source, ROOT) if (root / file).is_file()), None)
        assert path is not None, file
        for name in re.findall(r"`([\w.]+)`", names):
            if name.endswith(".py"):
                assert any((folder / name).is_file() for folder in (path.parent, source)), name
                continue
            for part in name.split("."):
                assert re.search(rf"(def|class) {part}\b", path.read_text()), f"{file} has no {name}"


def test_docs_pictures_match_the_results() -> None:
    import pictures

    rows = json.loads((ROOT / "benchmarks" / "results" / "pocket-curve.json").read_text())["rows"]
    front = pictures.front()
    assert front["deterministic"] == (rows["deterministic"]["bytes"], rows["deterministic"]["nll"])
    assert front["2DGBNN, 150 kB"] == (rows["150 kB"]["bytes"], rows["150 kB"]["nll"])
    panel = pictures.grid({("shared", "sample"): ["2dgbnn"]}).axes[0]
    assert len(panel.patches) == len(pictures.STORAGES) * len(pictures.PROPAGATIONS)
    assert "2dgbnn" in [text.get_text() for text in panel.texts]


def test_docs_numbers_stand_in_generated_tables() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "check_numbers.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_api_page_lists_every_public_name() -> None:
    import pocketbayes as pb

    listed = re.findall(r"^::: pocketbayes\.([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    names = [name for name in pb.__all__ if not isinstance(getattr(pb, name), ModuleType)]
    assert set(names) - set(listed) == set()
    for name in listed:
        assert attrgetter(name)(pb).__doc__, name
