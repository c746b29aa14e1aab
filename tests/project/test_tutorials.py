"""The tutorials' pages match their scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

import tutorials  # noqa: E402


def said(page: str) -> list[str]:
    """Return a page's output with all numbers masked, since digits differ between machines."""
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    return [re.sub(r"\s+", " ", re.sub(r"[-+]?\d[\d.,]*(e-?\d+)?", "#", block)) for block in blocks]


@pytest.mark.parametrize("name", tutorials.names())
def test_tutorial_page_has_its_scripts_prose_and_code(name: str) -> None:
    page = (tutorials.PAGES / f"{name}.md").read_text()
    for cell in tutorials.cells(name):
        assert (f"```python\n{cell.text}\n```" if cell.is_code else cell.text) in page, "run tools/tutorials.py"
    for picture in re.findall(r"\]\((figures/.*?\.png)\)", page):
        assert (tutorials.PAGES / picture).is_file()


@pytest.mark.filterwarnings("ignore:x holds values")
@pytest.mark.parametrize("name", [name for name in tutorials.names() if name not in tutorials.HEAVY])
def test_tutorial_light_output_matches_its_page(name: str, tmp_path: Path) -> None:
    page = tutorials.page(name, tutorials.run(name, tmp_path))
    assert said(page) == said((tutorials.PAGES / f"{name}.md").read_text())


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", tutorials.HEAVY)
def test_tutorial_on_real_data_matches_its_page(
    name: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETBAYES_DATA", str(data_dir))
    page = tutorials.page(name, tutorials.run(name, tmp_path))
    assert said(page) == said((tutorials.PAGES / f"{name}.md").read_text())


def test_tutorial_cells_are_prose_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tutorials, "SCRIPTS", tmp_path)
    script = "# %% [markdown]\n# # Title\n#\n# text\n\n# %%\nx = 2\nprint(x)\n\n# %%\nprint(x + 1)\n"
    (tmp_path / "small.py").write_text(script)
    prose, *code = tutorials.cells("small")
    assert (prose.text, prose.is_code) == ("# Title\n\ntext", False)
    assert [cell.text for cell in code] == ["x = 2\nprint(x)", "print(x + 1)"]
    ran = tutorials.run("small", tmp_path)
    assert [result.printed for result in ran] == ["", "2\n", "3\n"]
    assert "```python\nprint(x + 1)\n```\n\n```text\n3\n```" in tutorials.page("small", ran)
