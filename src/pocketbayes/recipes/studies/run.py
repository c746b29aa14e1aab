"""Training and measuring of the rows of a study; finished rows are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pocketbayes.base import atomic
from pocketbayes.base.environment import environment
from pocketbayes.base.errors import refusing
from pocketbayes.base.progress import Show
from pocketbayes.recipes.studies.rows import RowMaker
from pocketbayes.recipes.studies.study import Study
from pocketbayes.training.workers import run_jobs

MOST_WORKERS = 64
"""Default number of networks trained in parallel on a cluster."""
Row = tuple[str, int]


def reproduce(
    name: str,
    study: Study,
    out: str | Path,
    work: str | Path,
    data_dir: str | Path | None = None,
    *,
    quick: bool = False,
    seeds: int | None = None,
    rows: tuple[str, ...] | None = None,
    workers: int = 0,
    ray: str | None = None,
    progress: Show = None,
    on_row: Callable[[str, int, Mapping[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Train the missing networks of a study, measure them, and write `out/NAME.json` after each row.

    On Ray, each network is a job together with the rows that measure it or start from it; all machines must share the
    folder of runs.
    """
    name = f"{name}-quick" if quick else name
    path, work = Path(out) / f"{name}.json", Path(work) / name
    done = _done(study, quick, path)
    result: dict[str, Any] = {
        "study": name,
        "about": study.about,
        "stands_for": study.stands_for,
        "environment": environment(),
        "rows": done,
    }
    _write(path, result)  # before training, since the folder may not be writable
    maker = RowMaker(study, quick, work, data_dir, progress)
    chosen_seeds = study.seeds[: 1 if quick else seeds]
    missing = [
        (row, seed)
        for seed in chosen_seeds
        for row in (study.rows if rows is None else rows)
        if str(seed) not in done.get(row, {}).get("seeds", {})
    ]
    for row, seed, figures in _made(maker, missing, workers, ray):
        entry = result["rows"].setdefault(row, {"settings": _settings(study, row, seed, quick), "seeds": {}})
        entry["seeds"] = _in_order({**entry["seeds"], str(seed): figures})
        result["rows"] = {known: result["rows"][known] for known in study.rows if known in result["rows"]}
        _write(path, result)
        if on_row is not None:
            on_row(row, seed, figures)
    return result


def _made(
    maker: RowMaker, rows: Sequence[Row], workers: int, ray: str | None
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Run rows with their seeds, and yield each with its measurements."""
    if not workers and ray is None:
        for row, seed in rows:
            yield row, seed, maker.figures(row, seed)
        return
    groups: dict[Row, list[Row]] = {}
    for row, seed in rows:
        groups.setdefault((_root(maker.study, row), seed), []).append((row, seed))
    jobs = list(groups.values())
    elsewhere = replace(maker, work=maker.work.absolute(), progress=False)
    for number, found in run_jobs(_figures, [(elsewhere, job) for job in jobs], workers or MOST_WORKERS, ray):
        for (row, seed), figures in zip(jobs[number], found):
            yield row, seed, figures


def _figures(maker: RowMaker, rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [maker.figures(row, seed) for row, seed in rows]


def _root(study: Study, row: str) -> str:
    """Return the row that is trained first; rows that share it form one job, so that it is trained once."""
    before = study.rows[row].of or study.rows[row].start
    return row if before is None else _root(study, before)


def _write(path: Path, result: Mapping[str, Any]) -> None:
    atomic.write_atomically(path, json.dumps(result, indent=1) + "\n")


def _done(study: Study, quick: bool, path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a result that match the study's current settings."""
    found = read_result(path)
    rows: dict[str, dict[str, Any]] = {}
    for row in study.rows:
        settings = _settings(study, row, study.seeds[0], quick)
        if row in found and found[row]["settings"] == settings and found[row]["seeds"]:
            rows[row] = {"settings": settings, "seeds": _in_order(found[row]["seeds"])}
    return rows


def _in_order(seeds: Mapping[str, Any]) -> dict[str, Any]:
    return {seed: seeds[seed] for seed in sorted(seeds, key=lambda seed: (len(seed), seed))}


def read_result(path: Path) -> dict[str, dict[str, Any]]:
    """Read the rows of an earlier result; empty if there is no file."""
    if not path.is_file():
        return {}
    with refusing(path, "a readable result of a study", "; remove it to start again"):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return {str(row): {"settings": kept["settings"], "seeds": dict(kept["seeds"])} for row, kept in rows.items()}


def _settings(study: Study, row: str, seed: int, quick: bool) -> dict[str, Any]:
    """Return the settings that a row's measurements depend on, except the seed."""
    tree = study.recipe(row, seed, quick).to_tree()
    tree.pop("seed", None)
    chosen = study.rows[row]
    for place in study.seeded:
        part, _, key = place.rpartition(".")
        tree[part].pop(key)
    more = {
        "start": study.rows[chosen.of or row].start,
        "test_images": study.test_images,
        "shift_images": study.shift_images,
        "members": chosen.members,
        "compress": chosen.compress,
        "calibrate": chosen.calibrate or None,
    }
    return {
        "recipe": json.loads(json.dumps(tree)),
        **{key: value for key, value in more.items() if value is not None},
        "propagation": chosen.propagation,
        "samples": chosen.samples or study.samples,
        "ood": list(study.ood),
        "shift": list(study.shift),
    }
