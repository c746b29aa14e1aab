"""`pocketbayes reproduce`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pocketbayes.base.arguments import check_choice
from pocketbayes.cli.options import DataDir, Json, Ray, Workers
from pocketbayes.cli.output import log, note, show, show_json
from pocketbayes.reporting.table import table


def reproduce(
    what: Annotated[str, typer.Argument(metavar="list|NAME|all", help="A study, `all`, or `list`.")],
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option("--out", help="The folder for results, one JSON file per study.")] = Path(
        "benchmarks/results"
    ),
    work: Annotated[Path, typer.Option("--work", help="The folder for runs; interrupted runs resume.")] = Path(
        "runs/reproduce"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A short version: few examples, one seed.")] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds, instead of all of the study's.")
    ] = None,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only this row; may be repeated.")] = None,
    workers: Workers = 0,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Rerun a study, a table that compares methods, and write its results as JSON; finished rows are kept.

    Examples:
      pocketbayes reproduce list
      pocketbayes reproduce mnist-lenet300 --data-dir data --seeds 1
      pocketbayes reproduce digits --quick --out /tmp/results
      pocketbayes reproduce digits --workers 4
      pocketbayes reproduce digits --ray ray://head:10001
    """
    from pocketbayes.recipes import studies

    if what == "list":
        found = {name: studies.read(name) for name in studies.names()}
        listed = [
            {"study": name, "about": s.about, "stands for": s.stands_for, "minutes": s.minutes, "rows": len(s.rows)}
            for name, s in found.items()
        ]
        if json:
            show_json({"studies": listed})
        else:
            show(table([{**row, "minutes": f"{row['minutes']:g}"} for row in listed]))
        return
    results = []
    for name in studies.names() if what == "all" else [what]:
        study = studies.read(name)
        for row in rows or ():
            check_choice(f"row of study {name!r}", row, study.rows)
        note(f"{name}: {study.about}")
        result = studies.reproduce(
            name, study, out, work, data_dir, quick=quick, seeds=seeds, rows=tuple(rows) if rows else None,
            workers=workers, ray=ray,
            on_row=lambda row, seed, figures: log(f"{row}, seed {seed}: {_words(figures)}"),
        )  # fmt: skip
        results.append(result)
        if not json:
            show(table(_rows(result), title=f"{result['study']}: {result['about']}"))
            note(f"saved {out / (result['study'] + '.json')}")
    if json:
        show_json({"results": results})


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one line per row, with means over seeds."""
    lines = []
    for name, row in result["rows"].items():
        seeds = list(row["seeds"].values())
        if seeds:
            numbers = [{key: value for key, value in seed.items() if isinstance(value, (int, float))} for seed in seeds]
            keys = [key for key in numbers[0] if key != "count" and all(key in seed for seed in numbers)]
            means = {key: sum(seed[key] for seed in seeds) / len(seeds) for key in keys}
            whole = {key: round(means[key]) for key in ("bytes", "values") if key in means}
            lines.append({"row": name, "seeds": len(seeds), **means, **whole})
    return lines


def _words(figures: Mapping[str, Any]) -> str:
    return "  ".join(f"{key} {value:.4g}" for key, value in figures.items() if isinstance(value, float))
