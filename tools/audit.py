"""List the packages that `pocketbayes` can import, with their versions and licences.

python tools/audit.py            check, and write docs/dependencies.md
python tools/audit.py --check    check, and fail if the page is out of date

The packages are those that the source imports, with their dependencies. It is an error if one of them is under the GPL
or AGPL, has no known licence, is not pinned in constraints.txt, or is imported but not declared in pyproject.toml.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
FORBIDDEN = re.compile(r"(?<!L)A?GPL|(?<!Lesser )General Public License", re.IGNORECASE)
EXTRAS = ("", "vision", "laplace", "report", "onnx", "hub", "explain", "ray")
"""Extras for users; "" is the core. The other extras are for developers, and the package does not import them."""
STATED = {"cuda-toolkit": "none stated; holds no files, names NVIDIA's packages"}
"""Licences of packages whose metadata do not state one."""
INSTALLERS = ("pip", "setuptools", "wheel")
"""Packages that come with the environment and are not listed."""


def declared(pyproject: Path = ROOT / "pyproject.toml") -> dict[str, list[Requirement]]:
    """Return the requirements by extra, without references to our other extras."""
    import tomllib

    project = tomllib.loads(pyproject.read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found = {extra: [Requirement(text) for text in groups[extra]] for extra in EXTRAS}
    return {extra: [need for need in needs if need.name != "pocketbayes"] for extra, needs in found.items()}


def closure(needs: Iterable[Requirement]) -> Iterator[str]:
    """Yield the packages that fulfil these requirements, and their dependencies."""
    waiting = [(canonicalize_name(need.name), frozenset(need.extras)) for need in needs]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            texts = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            yield name
            continue
        yield name
        waiting += [
            (canonicalize_name(need.name), frozenset(need.extras))
            for need in map(Requirement, texts)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        ]


def licence(name: str) -> str | None:
    """Return the shortest statement of a licence in a package's metadata."""
    if name in STATED:
        return STATED[name]
    found = metadata.metadata(name)
    if expression := found.get("License-Expression"):
        return str(expression)
    classifiers = [text.rpartition(" :: ")[2] for text in found.get_all("Classifier") or [] if "License ::" in text]
    classifiers = [text for text in classifiers if text != "OSI Approved"]
    if classifiers:
        return "; ".join(sorted(classifiers))
    text = (found.get("License") or "").strip()
    return text.splitlines()[0][:60] if text and text.upper() != "UNKNOWN" else None


def pinned(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Return the versions in the constraints."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in pairs}


def imported(source: Path = ROOT / "src") -> set[str]:
    """Return the top-level modules that the package imports, except the standard library and itself."""
    names: set[str] = set()
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"pocketbayes"}


def problems(rows: Mapping[str, tuple[str, str | None, str]], needs: Mapping[str, list[Requirement]]) -> list[str]:
    """Return a message for each problem."""
    found = []
    for name, (version, terms, _) in rows.items():
        if terms is None:
            found.append(f"{name} has no licence that is known: look it up and add it to STATED in tools/audit.py")
        elif FORBIDDEN.search(terms):
            found.append(f"{name} is under {terms}: the package must not import it")
        if not version and name not in INSTALLERS:
            found.append(f"{name} is not pinned in constraints.txt")
    known = metadata.packages_distributions()
    named = {canonicalize_name(need.name) for group in needs.values() for need in group}
    for module in sorted(imported()):
        owners = {canonicalize_name(owner) for owner in known.get(module, [])}
        if not owners & named:
            found.append(f"the source imports {module}, which pyproject.toml does not declare")
    return found


def audit() -> tuple[dict[str, tuple[str, str | None, str]], list[str]]:
    """Return version, licence and first extra of every package, and the problems."""
    needs, versions = declared(), pinned()
    rows: dict[str, tuple[str, str | None, str]] = {}
    absent = []
    for extra, group in needs.items():
        for name in sorted(set(closure(group)) - rows.keys()):
            try:
                rows[name] = (versions.get(name, ""), licence(name), extra or "core")
            except metadata.PackageNotFoundError:  # noqa: PERF203 (a hundred of them)
                absent.append(f"{name} is not installed: install what pyproject.toml declares as dev")
    return rows, absent + problems(rows, needs)


def page(rows: Mapping[str, tuple[str, str | None, str]]) -> str:
    """Return the page in Markdown."""
    lines = [
        "# Dependencies",
        "",
        "All packages that pocketbayes or one of its extras can import, with the version that CI tests and the licence",
        "in the package's metadata. None is under the GPL or AGPL. `tools/audit.py` generates this page. A test fails",
        "if the page is out of date, a licence is unknown or a version is not pinned. The `audit` workflow checks the",
        "packages against the advisory database every week (`pip-audit`).",
        "",
        "| package | version | licence | for |",
        "|---|---|---|---|",
    ]
    table = [f"| {name} | {version} | {terms} | {extra} |" for name, (version, terms, extra) in sorted(rows.items())]
    return "\n".join([*lines, *table]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    rows, wrong = audit()
    text = page(rows)
    if not check:
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        wrong.append(f"{PAGE.name} is not up to date: run tools/audit.py")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(rows)} packages, {len(wrong)} problems")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
