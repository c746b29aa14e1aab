"""Shared tools of the benchmarks: timing on a noisy machine, process memory, result files and figures.

Times are interleaved medians of one run, reported as ratios.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.environment import environment

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"


def interleaved(
    actions: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each action; all run once per round, so that a slow phase affects all of them.

    With `time.process_time` as the clock, only the CPU seconds of this process count.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(warmup + rounds):
        for name, action in actions.items():
            start = clock()
            action()
            if number >= warmup:
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def ratios(seconds: Mapping[str, float], base: str) -> dict[str, float]:
    """Return each time relative to the base."""
    return {name: value / seconds[base] for name, value in seconds.items()}


def memory(field: str = "VmRSS") -> int:
    """Return bytes of this process: ``VmRSS`` now, ``VmHWM`` the peak since `forget_peak`; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} on this system")


def forget_peak() -> None:
    """Reset the peak memory."""
    Path("/proc/self/clear_refs").write_text("5")


def write_result(name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write NAME.json with the results and the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    text = json.dumps({"environment": environment(), **result}, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


class Rows(dict[str, Any]):
    """The rows of a result file: read at the start, and all written whenever one is kept.

    Attributes:
        document: The full file as it was read, with the settings.
    """

    def __init__(
        self,
        file: str,
        beside: Mapping[str, Any] | None = None,
        key: str = "rows",
        order: Iterable[str] = (),
        folder: Path = RESULTS,
    ) -> None:
        """Read a file. `beside`: settings to write; `key`: the entry of the rows; `order`: names that come first."""
        path = folder / f"{file}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        found.pop("environment", None)
        for setting, value in (beside or {}).items():
            if found.get(setting, value) != json.loads(json.dumps(value)):
                raise SystemExit(f"{path}: its rows have {setting} {found[setting]}, not {value}: move it away first")
        super().__init__(found.get(key, {}))
        self.file, self.key, self.order, self.folder = file, key, tuple(order), folder
        self.document = {**found, **(beside or {})}

    def keep(self, name: str, row: Mapping[str, Any]) -> None:
        """Add the row, write the file and print the start of the row."""
        self[name] = row
        first = {each: self[each] for each in self.order if each in self}
        write_result(self.file, {**self.document, self.key: {**first, **self}}, self.folder)
        print(self.file, name, json.dumps(row)[:1000], flush=True)


def draw(figures: Mapping[str, Callable[[], Any]]) -> None:
    """Write NAME.png to docs/figures for each figure; functions return None for figures without data."""
    from pocketbayes.reporting.figures import save

    for name, make in figures.items():
        figure = make()
        if figure is not None:
            print(save(figure, FIGURES / f"{name}.png").name)
