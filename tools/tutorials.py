"""Run the tutorials and write their pages: prose and code from the script, output and figures from running it.

python tools/tutorials.py [NAME ...] [--data-dir DATA]

A tutorial is a script in `examples/tutorials` of cells in the percent format, which editors open as a notebook: `# %%`
begins code, `# %% [markdown]` prose in comments. The page `docs/tutorials/NAME.md` shows each cell with its output and
the .png files that it writes. `HEAVY` lists the tutorials that need a data folder; the tests run the others.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "examples" / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
HEAVY = ("compress", "streets")
CELL = re.compile(r"^# %%(?P<prose> \[markdown\])?\n(?P<text>.*?)(?=^# %%|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """Prose in Markdown, or code."""

    text: str
    is_code: bool


@dataclass(frozen=True)
class Ran:
    """The output and the figures of a code cell."""

    printed: str = ""
    pictures: tuple[str, ...] = ()


def names() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("*.py"))


def cells(name: str) -> list[Cell]:
    """Return the cells of a script."""
    found = []
    for match in CELL.finditer((SCRIPTS / f"{name}.py").read_text()):
        text = match["text"].strip("\n")
        if match["prose"]:
            found.append(Cell("\n".join(line.removeprefix("#").removeprefix(" ") for line in text.split("\n")), False))
        else:
            found.append(Cell(text, True))
    return found


def run(name: str, folder: Path) -> list[Ran]:
    """Run the cells one after another in one namespace, with `folder` as the working directory."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    ran = []
    with _inside(folder):
        for cell in cells(name):
            if not cell.is_code:
                ran.append(Ran())
                continue
            before = set(folder.glob("*.png"))
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(cell.text, f"{name}.py", "exec"), namespace)
            ran.append(Ran(out.getvalue(), tuple(sorted(path.name for path in set(folder.glob("*.png")) - before))))
    return ran


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def page(name: str, ran: list[Ran]) -> str:
    """Return the page: prose, code, and the output of each cell."""
    parts = [f"<!-- Written by tools/tutorials.py from examples/tutorials/{name}.py: change that. -->"]
    for cell, result in zip(cells(name), ran):
        parts.append(f"```python\n{cell.text}\n```" if cell.is_code else cell.text)
        if result.printed:
            parts.append(f"```text\n{result.printed.rstrip()}\n```")
        for picture in result.pictures:
            alt = Path(picture).stem.replace("-", " ")
            parts.append(f"![{alt}](figures/{name}-{picture})")
    data = " --data-dir DATA" if name in HEAVY else ""
    command = f"python tools/tutorials.py {name}{data}"
    parts.append(f"*The script is `examples/tutorials/{name}.py`; `{command}` runs it and writes this page.*")
    return "\n\n".join(parts) + "\n"


def write(name: str) -> None:
    with tempfile.TemporaryDirectory() as work:
        ran = run(name, Path(work))
        figures = PAGES / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        for old in figures.glob(f"{name}-*.png"):
            old.unlink()
        for picture in (picture for result in ran for picture in result.pictures):
            shutil.copyfile(Path(work) / picture, figures / f"{name}-{picture}")
    (PAGES / f"{name}.md").write_text(page(name, ran))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*names(), []], metavar="NAME", help="all, if none is given")
    parser.add_argument("--data-dir", type=Path, help="for those with real data; else POCKETBAYES_DATA")
    arguments = parser.parse_args()
    if arguments.data_dir is not None:
        os.environ["POCKETBAYES_DATA"] = str(arguments.data_dir.resolve())
    for name in arguments.names or names():
        write(name)
        print(PAGES / f"{name}.md")


if __name__ == "__main__":
    main()
