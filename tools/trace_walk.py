"""Count how often fit, predict, save, load, evaluate, compress and report cross between rooms of the package.

python tools/trace_walk.py [--out walk.json]

A room is an entry directly under `pocketbayes/`. A walk lists the functions of a call in the order of their first call.
A change is a step from one room to another; a return is a step to a room that was left before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

TARGETS = {"fit": (75, 68), "predict": (25, 21), "save": (10, 6), "compress": (115, 101), "evaluate": (83, 71)}
"""Target numbers of changes and returns."""


class Walk:
    """The functions of a call, each once, and their rooms."""

    def __init__(self, package: Path) -> None:
        self.package = str(package) + "/"
        self.seen: set[CodeType] = set()
        self.rooms: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record the first call of a function; called by `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or code in self.seen or not code.co_filename.startswith(self.package):
            return
        self.seen.add(code)
        room = code.co_filename[len(self.package) :].split("/")[0].removesuffix(".py")
        if not self.rooms or self.rooms[-1] != room:
            self.rooms.append(room)

    @property
    def changes(self) -> int:
        """The number of steps from one room to another."""
        return max(len(self.rooms) - 1, 0)

    @property
    def returns(self) -> int:
        """The number of steps to a room that was left before."""
        return len(self.rooms) - len(set(self.rooms))


def trace(package: Path, call: Callable[[], Any]) -> Walk:
    """Return the walk of a call."""
    walk = Walk(package)
    sys.setprofile(walk)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def walks() -> dict[str, Walk]:
    """Trace each verb on small data."""
    import torch

    import pocketbayes as pb

    torch.set_num_threads(1)
    package = Path(pb.__file__).parent
    train, val = pb.data.load("digits", "train"), pb.data.load("digits", "val")
    method, model = pb.MeanFieldVI(), pb.models.build("mlp", in_features=64, hidden=[8], out_features=10)
    x = torch.stack([val[number][0] for number in range(8)])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        run, file, page = Path(folder, "run"), Path(folder, "net.pocket"), Path(folder, "report.html")
        calls: dict[str, Callable[[], Any]] = {
            "fit": lambda: pb.fit(method, model, train, epochs=1, progress=False),
            "predict": lambda: pb.predict(net, x, propagation="linear"),
            "save": lambda: pb.save(net, file),
            "load": lambda: pb.load(file),
            "evaluate": lambda: pb.evaluate(net, val, samples=2),
            "compress": lambda: pb.compress(net, train, val, max_nll_loss=0.1, samples=2, progress=False),
            "report": lambda: pb.report([run], page),
        }
        net: Any = pb.fit(method, model, train, val=val, epochs=1, out=run, progress=False)
        for name, call in calls.items():
            found[name] = trace(package, call)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    out = parser.parse_args().out
    warnings.simplefilter("ignore")
    found = walks()
    print(f"{'verb':10} {'changes':>8} {'returns':>8}   target")
    for name, walk in found.items():
        target = " / ".join(map(str, TARGETS[name])) if name in TARGETS else "-"
        print(f"{name:10} {walk.changes:8} {walk.returns:8}   {target}")
    if out is not None:
        figures = {name: {"changes": walk.changes, "returns": walk.returns} for name, walk in found.items()}
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
