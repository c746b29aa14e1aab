"""Trains and measures the rows of a study, one seed after another; what is done is kept and not done again."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketbayes.base import atomic
from pocketbayes.base.environment import environment
from pocketbayes.base.errors import refusing
from pocketbayes.base.progress import Show
from pocketbayes.base.shard import Shard
from pocketbayes.recipes.studies.rows import RowMaker
from pocketbayes.recipes.studies.study import Study


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
    shard: Shard | None = None,
    progress: Show = None,
    on_row: Callable[[str, int, Mapping[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Trains what is missing of a study, measures it, and writes `out/NAME.json` after each row.

    Several machines share out the networks by `shard`; each writes a file of its own. A call without it, where these
    files have been put into `out`, takes in what they hold and makes what is still missing.

    Args:
        name: Of the study, and so of its result.
        study: The study.
        out: The folder of results.
        work: The folder of runs, one for each network; an interrupted one goes on.
        data_dir: The folder that holds the data.
        quick: The version of minutes, with one seed and no shifts; its result is `NAME-quick.json`.
        seeds: Only the first so many; None for all.
        rows: Only these.
        shard: Only the networks of this job, with the result in `NAME.shard-i-of-N.json`.
        progress: As in `fit`.
        on_row: Told the row, the seed and its figures after each.

    Returns:
        The result as it was written.
    """
    name = f"{name}-quick" if quick else name
    whole, work = Path(out) / f"{name}.json", Path(work) / name
    path = whole if shard is None else whole.with_suffix(f".{shard.name}.json")
    done = _done(study, quick, [whole, *sorted(Path(out).glob(f"{glob.escape(name)}.shard-*-of-*.json"))])
    own = done if shard is None else _done(study, quick, [path])
    result: dict[str, Any] = {
        "study": name,
        "about": study.about,
        "stands_for": study.stands_for,
        "environment": environment(),
        "rows": own,
    }
    if own != read_result(path):
        _write(path, result)
    maker = RowMaker(study, quick, work, data_dir, progress)
    chosen_seeds = study.seeds[: 1 if quick else seeds]
    networks = [(row, seed) for seed in study.seeds for row, chosen in study.rows.items() if chosen.of is None]
    for seed in chosen_seeds:
        for row in study.rows if rows is None else rows:
            network = networks.index((study.rows[row].of or row, seed))
            if str(seed) in done.get(row, {}).get("seeds", {}) or (shard is not None and not shard.takes(network)):
                continue
            figures = maker.figures(row, seed)
            entry = result["rows"].setdefault(row, {"settings": _settings(study, row, seed, quick), "seeds": {}})
            entry["seeds"] = _in_order({**entry["seeds"], str(seed): figures})
            result["rows"] = {known: result["rows"][known] for known in study.rows if known in result["rows"]}
            _write(path, result)
            if on_row is not None:
                on_row(row, seed, figures)
    return result


def _write(path: Path, result: Mapping[str, Any]) -> None:
    text = json.dumps(result, indent=1) + "\n"
    atomic.write_atomically(path, lambda file: file.write(text.encode()))


def _done(study: Study, quick: bool, files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """What is known of a study's rows from all these files, as far as they were made by the study as it is now."""
    found = [read_result(file) for file in files]
    rows: dict[str, dict[str, Any]] = {}
    for row in study.rows:
        settings = _settings(study, row, study.seeds[0], quick)
        parts = [rows_[row]["seeds"] for rows_ in found if row in rows_ and rows_[row]["settings"] == settings]
        seeds = {seed: figures for part in reversed(parts) for seed, figures in part.items()}
        if seeds:
            rows[row] = {"settings": settings, "seeds": _in_order(seeds)}
    return rows


def _in_order(seeds: Mapping[str, Any]) -> dict[str, Any]:
    return {seed: seeds[seed] for seed in sorted(seeds, key=lambda seed: (len(seed), seed))}


def read_result(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a result that was written before; none if there is no such file."""
    if not path.is_file():
        return {}
    with refusing(path, "a readable result of a study", "; remove it to start anew"):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return {str(row): {"settings": kept["settings"], "seeds": dict(kept["seeds"])} for row, kept in rows.items()}


def _settings(study: Study, row: str, seed: int, quick: bool) -> dict[str, Any]:
    """All that a row's figures depend on but the seed."""
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
    }
    return {
        "recipe": json.loads(json.dumps(tree)),
        **{key: value for key, value in more.items() if value is not None},
        "propagation": chosen.propagation,
        "samples": chosen.samples or study.samples,
        "ood": list(study.ood),
        "shift": list(study.shift),
    }
