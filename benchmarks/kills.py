"""Kill runs of `pocketbayes train` (SIGKILL) repeatedly, resume them, and check that the result is bit-identical.

python benchmarks/kills.py [--kills 4] [--method NAME] [--events] [--out FOLDER]

Every method trains a small network on the embedded digits, all its stages, with a checkpoint every second step. Kills
are spread evenly over the stages, `--kills` in each: a run is killed at a random time of the stage, or at a random
event (a step begins, a file of the run is opened, renamed or removed), then resumed and killed again until it finishes.
All files of its folder and its metrics are then compared with those of an uninterrupted run. Writes results/kills.json,
one row per method; finished rows are kept. Processes are forks of one that has imported everything, so that a kill
costs a fraction of a second.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from measure import RESULTS, Rows
from pocketbayes.cli import app
from pocketbayes.methods import METHODS
from pocketbayes.training.loop import Loop
from pocketbayes.training.run import FitRun

SETTINGS: dict[str, list[str]] = {
    "ensemble": ["members=2"],
    "swag": ["swag_epochs=2", "rank=2"],
    "laplace": ["hessian=kron"],
    "2dgbnn": ["k=8", "n_min=4", "tau_w=0.5", "pretrain_epochs=1", "meanfield_epochs=1", "refresh_epochs=1"],
    "ssvi": ["density=0.2", "swap_every=3", "swap_until=1.0"],
    "rigl": ["density=0.2", "swap_every=3", "swap_until=1.0"],
    "pbn": ["pretrain_epochs=1", "train_samples=2"],
}
RECIPE = [
    "model={name: mlp, hidden: [16]}", "data={name: digits, subset: 280, val_fraction: 0.2}", "samples=3",
    "training={epochs: 3, batch_size: 64, lr: 3e-3, schedule: cosine, keep_best: true, val_samples: 2, "
    "checkpoint_steps: 2}",
]  # fmt: skip
KILLS_PER_RUN = 3
"""Number of kills before a run may finish."""
EVENTS = ("open", "os.rename", "os.remove", "os.truncate")


@dataclass(frozen=True)
class Begun:
    """The start of a stage: its name, the number of earlier events, the seconds since the start of the run."""

    name: str
    events: int
    seconds: float


@dataclass(frozen=True)
class Ended:
    """The end of a process: its exit code (None if it was killed), its stages, events and seconds.

    The first stage is "start", before training; the last one is "end", after training.
    """

    code: int | None
    stages: tuple[Begun, ...]
    events: int
    seconds: float


def train(
    method: str, folder: Path, resume: bool = False, after: float | None = None, event: int | None = None
) -> Ended:
    """Train in a separate process, which is killed after some seconds or at its n-th event, if it gets there."""
    options = [item for setting in SETTINGS.get(method, ()) for item in ("--set", f"method.{setting}")]
    if resume:
        command = ["train", "--resume"]
    else:
        command = ["train", *(item for part in RECIPE for item in ("--set", part)), "--method", method, *options]
    command += ["--out", str(folder), "--json"]
    reader, writer = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_child(command, folder, event, writer)
    os.close(writer)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)  # the pid of a finished child is not reused before it is waited for
    with os.fdopen(reader) as file:
        told = [line.split("\t") for line in file.read().splitlines()]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = None if status == -signal.SIGKILL else status
    stages = tuple(Begun(name, int(seen), float(when) - start) for name, seen, when in told)
    return Ended(code, stages, stages[-1].events if stages else 0, time.monotonic() - start)


def _be_child(command: list[str], folder: Path, event: int | None, writer: int) -> None:
    """Run the command in the forked process; never return."""
    seen = 0

    def tell(name: str) -> None:
        os.write(writer, f"{name}\t{seen}\t{time.monotonic()}\n".encode())

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == event:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name in EVENTS and str(arguments[0]).startswith(str(folder)):
            count()

    step, one_stage = Loop.step, FitRun._one_stage

    def counted_step(*arguments: Any) -> Any:
        count()
        return step(*arguments)

    def told_stage(run: FitRun, net: Any, stage: Any, tree: Any) -> Any:
        tell(stage.name)
        net = one_stage(run, net, stage, tree)
        tell("end")  # or the next stage, which is reported at once
        return net

    code = 1
    try:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
        Loop.step = counted_step  # type: ignore[method-assign]
        FitRun._one_stage = told_stage  # type: ignore[assignment, method-assign]
        tell("start")
        sys.addaudithook(audit)
        app(command)
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        tell("exit")
        os._exit(code)


def remains(folder: Path) -> dict[str, Any]:
    """Return the files of a finished run byte by byte, and its metrics."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    printed = json.loads(Path(f"{folder}.out").read_text())
    return {**files, "printed": {key: printed[key] for key in ("recipe", "measures", "census", "bytes")}}


def spans(whole: Ended) -> dict[str, tuple[Begun, Begun]]:
    """Return the start and end of each stage of a run."""
    pairs = zip(whole.stages, whole.stages[1:])
    return {begun.name: (begun, following) for begun, following in pairs if following.events > begun.events}


def choose(stage: tuple[Begun, Begun], chooser: random.Random, clock: bool) -> dict[str, Any]:
    """Choose a moment within a stage."""
    begun, following = stage
    if clock:
        return {"after": chooser.uniform(begun.seconds, following.seconds)}
    return {"event": chooser.randint(begun.events + 1, following.events)}


def trial(method: str, folder: Path, first: dict[str, Any], chooser: random.Random, whole: Ended) -> Counter[str]:
    """Kill and resume a run until it finishes; count the kills by stage."""
    killed: Counter[str] = Counter()
    when = first
    while True:
        ended = train(method, folder, resume=(folder / "recipe.yaml").exists(), **when)
        if ended.code is None:
            killed[ended.stages[-1].name if ended.stages else "start"] += 1
        elif ended.code:
            raise RuntimeError(f"{method}: exit code {ended.code}: {Path(f'{folder}.err').read_text()[-2000:]}")
        else:
            return killed
        again = sum(killed.values()) < KILLS_PER_RUN
        when = {"event": chooser.randint(1, whole.events)} if again else {}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of files or outputs that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def measure(method: str, folder: Path, kills: int, clock: bool) -> dict[str, Any]:
    """Return a row with `kills` per stage; with `clock`, every second run is first killed at a random time."""
    whole = train(method, folder / "whole")
    if whole.code != 0:
        raise RuntimeError(f"{method}: exit code {whole.code}: {(folder / 'whole.err').read_text()[-2000:]}")
    expected, stages = remains(folder / "whole"), spans(whole)
    chooser = random.Random(method)
    killed: Counter[str] = Counter(dict.fromkeys(stages, 0))
    runs, by_clock, different = 0, 0, []
    while min(killed.values()) < kills:
        timed, run = clock and runs % 2 == 0, folder / f"run{runs}"
        rarest = min(stages, key=killed.__getitem__)
        killed += trial(method, run, choose(stages[rarest], chooser, timed), chooser, whole)
        killed.update(dict.fromkeys(stages, 0))
        different += differences(expected, remains(run))
        runs, by_clock = runs + 1, by_clock + timed
    return {
        "kills": sum(killed.values()),
        "runs": runs,
        "by the clock": by_clock,
        "stages": dict(killed),
        "differences": different,
        "files": len(expected) - 1,
        "events": whole.events,
    }


def prepare() -> None:
    """Import all modules, so that forks need not."""
    for name in ("laplace", "lightning_fabric", "sklearn.datasets", "pocketbayes.reporting.table"):
        importlib.import_module(name)
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4, help="in every stage")
    parser.add_argument("--method", choices=METHODS, action="append")
    parser.add_argument("--events", action="store_true", help="kill at events only, so that no clock decides")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    prepare()
    rows = Rows("kills", order=METHODS, folder=arguments.out)
    for method in arguments.method or METHODS:
        if min(rows.get(method, {}).get("stages", {"none": 0}).values()) >= arguments.kills:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = measure(method, Path(folder), arguments.kills, clock=not arguments.events)
        rows.keep(method, row)


if __name__ == "__main__":
    main()
