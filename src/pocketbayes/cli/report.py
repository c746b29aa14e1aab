"""`pocketbayes report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbayes.cli.options import Json
from pocketbayes.cli.output import complain, note, show, show_json, styled
from pocketbayes.reporting.build import write
from pocketbayes.reporting.runs import RunFolder


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS...", help="Run folders, folders of run folders, or .pocket files."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="A folder for the figures as PNG, SVG and PDF.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare runs on one offline HTML page: leaderboard, calibration, shift, training, weights, recipes.

    Recipe, training curves, weights and costs come from the runs; `pocketbayes evaluate` adds measurements. Missing
    parts are omitted. If a run is unfinished, the page names it and the exit code is 2.

    Examples:
      pocketbayes report runs/digits-bbb runs/digits-2dgbnn
      pocketbayes report runs/demo --out demo.html --figures figures
    """
    found = write(runs, out, figures)
    if json:
        show_json(
            {
                "report": str(found.page),
                "figures": [str(file) for file in found.figures],
                "runs": [
                    {"name": run.name, "path": str(run.path), "problems": run.problems, "unfinished": run.is_unfinished}
                    for run in found.runs
                ],
            }
        )
        _exit_if_unfinished(found.runs)
        return
    for run in found.runs:
        for problem in () if run.is_unfinished else run.problems:
            note(f"{run.name}: {problem}")
    drawn = f", {len(found.figures)} figures" if figures else ""
    show(styled("bold", found.page, f": {len(found.runs)} run{'s' * (len(found.runs) != 1)}{drawn}"))
    _exit_if_unfinished(found.runs)


def _exit_if_unfinished(runs: list[RunFolder]) -> None:
    """Name unfinished runs and exit with code 2 if there are any."""
    unfinished = [run for run in runs if run.is_unfinished]
    if unfinished:
        names = ", ".join(run.name for run in unfinished)
        complain(
            f"{names}: unfinished; resume with: pocketbayes train --out {unfinished[0].path} --resume", "warning: "
        )
        raise typer.Exit(2)
