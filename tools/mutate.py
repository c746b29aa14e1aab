"""Run mutation tests of the numerical core: plant small mistakes, one at a time, that the tests should detect.

python tools/mutate.py [TARGET ...] [--mutants 30] [--seed 0]

A mutant runs in a process that is forked after torch and pytest are loaded, with the changed source in place of one
module; files are not changed. Writes benchmarks/results/mutation.json with every survivor.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pocketbayes"
RESULT = ROOT / "benchmarks" / "results" / "mutation.json"
TARGETS = {
    "plane": ("plane", ["tests/plane"]),
    "scores": (
        "posteriors/removal.py",
        ["tests/posteriors/test_sparse.py", "-k", "score or ratios or ranking or overlap"],
    ),
    "moments": ("propagation/moments", ["tests/propagation/test_moments.py"]),
    "codec": ("files/codec", ["tests/files/test_codec.py"]),
}
"""The mutated files, and pytest's arguments for the tests that should detect mistakes."""
SWAPS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+", ast.Pow: "*",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip
SECONDS = 120
"""CPU seconds after which a mutant counts as detected, because it never ends."""


@dataclass(frozen=True)
class Mutant:
    """A change of one expression.

    Attributes:
        file: The path inside the package.
        line: The line number.
        before: The original expression.
        after: The changed expression.
        start: The offset in the file, in characters.
    """

    file: str
    line: int
    before: str
    after: str
    start: int

    @property
    def text(self) -> str:
        """The text of the changed file."""
        whole = (SOURCE / self.file).read_text()
        return whole[: self.start] + self.after + whole[self.start + len(self.before) :]


def mutants(file: Path) -> Iterator[Mutant]:
    """Return all mutants of a file."""
    whole = file.read_text()
    lines = [0]
    for line in whole.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    tree = ast.parse(whole)
    types: set[int] = set()
    for node in ast.walk(tree):  # annotations are not executed, and messages have no effect on results
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            types |= {id(inner) for inner in ast.walk(part)} if part is not None else set()
        if isinstance(node, ast.Raise | ast.JoinedStr):
            types |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in types or not isinstance(node, ast.expr):
            continue
        before = ast.get_source_segment(whole, node)
        for after in changes(node, whole):
            if before is not None and before.isascii():
                place = lines[node.lineno - 1] + node.col_offset
                yield Mutant(str(file.relative_to(SOURCE)), node.lineno, before, after, place)


def changes(node: ast.expr, whole: str) -> Iterator[str]:
    """Return the variants of an expression."""

    def source(inner: ast.AST) -> str:
        return f"({ast.get_source_segment(whole, inner)})"

    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not isinstance(node.left, ast.JoinedStr):
        yield f"{source(node.left)} {SWAPS[type(node.op)]} {source(node.right)}"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield f"{source(node.left)} {SWAPS[type(node.ops[0])]} {source(node.comparators[0])}"
    elif isinstance(node, ast.BoolOp):
        yield f" {SWAPS[type(node.op)]} ".join(map(source, node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield source(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield repr(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield repr(not node.value)
    elif isinstance(node, ast.IfExp):
        yield f"{source(node.orelse)} if {source(node.test)} else {source(node.body)}"


def outcome(mutant: Mutant | None, tests: list[str]) -> str:
    """Return "survived", "noticed" or "never ends"; None runs the tests with the original source."""
    child = os.fork()
    if child == 0:
        _run(mutant, tests)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "never ends" if os.WTERMSIG(status) == signal.SIGXCPU else "noticed"
    return "survived" if os.WEXITSTATUS(status) == 0 else "noticed"


def _run(mutant: Mutant | None, tests: list[str]) -> None:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    if mutant is not None:
        path, text, usual = str(SOURCE / mutant.file), mutant.text, importlib.machinery.SourceFileLoader.get_code

        def get_code(self: Any, fullname: str) -> Any:
            return compile(text, path, "exec") if self.path == path else usual(self, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--rootdir", str(ROOT)]
    os._exit(int(pytest.main([*options, *tests])))


def every(name: str) -> list[Mutant]:
    """Return all mutants of a target."""
    path = SOURCE / TARGETS[name][0]
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [mutant for file in files for mutant in mutants(file)]


def sample(name: str, count: int, seed: int) -> list[Mutant]:
    """Return a sample of a target's mutants, in source order."""
    found = every(name)
    chosen = random.Random(f"{seed} {name}").sample(found, min(count, len(found)))
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.start))


def survivors(name: str, row: dict[str, Any]) -> list[Mutant]:
    """Return the last survivors that still apply to the source."""
    found: list[Mutant] = []
    for left in row["survivors"]:
        same = ("file", "before", "after")
        alike = [mutant for mutant in every(name) if all(getattr(mutant, part) == left[part] for part in same)]
        found += sorted(alike, key=lambda mutant: abs(mutant.start - left["start"]))[:1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--mutants", type=int, default=30, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="only those that survived last time")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    sys.dont_write_bytecode = True
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = "/tmp/mutate-hypothesis"
    import numpy  # noqa: F401 (loaded once, for all that are forked)
    import scipy.stats  # noqa: F401
    import sklearn.cluster  # noqa: F401
    import torch

    torch.set_num_threads(1)
    rows = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    for name in arguments.targets or TARGETS:
        tests = TARGETS[name][1]
        assert outcome(None, tests) == "survived", f"the tests of {name} fail as they are"
        start = time.process_time() + sum(os.times()[2:4])
        found: dict[str, list[Mutant]] = {"noticed": [], "never ends": [], "survived": []}
        before = rows.get(name, {}) if arguments.again else {}
        chosen = survivors(name, before) if before else sample(name, arguments.mutants, arguments.seed)
        for mutant in chosen:
            came = outcome(mutant, tests)
            found[came].append(mutant)
            print(name, came, f"{mutant.file}:{mutant.line}", mutant.before[:60], "->", mutant.after[:60], flush=True)
        left = [asdict(mutant) for mutant in found["survived"]]
        counts = {came: len(group) for came, group in found.items()}
        if before:
            counts |= {
                "noticed": before["mutants"] - before["never ends"] - len(left),
                "never ends": before["never ends"],
            }
        seconds = round(time.process_time() + sum(os.times()[2:4]) - start)
        rows[name] = {"mutants": sum(counts.values()), **counts, "survivors": left, "cpu seconds": seconds}
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")
        print(name, counts, seconds, "s", flush=True)


if __name__ == "__main__":
    main()
