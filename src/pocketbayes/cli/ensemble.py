"""`pocketbayes ensemble`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbayes.base.errors import UserError
from pocketbayes.cli.datasets import data_of, load_for, recipe_beside
from pocketbayes.cli.options import DataDir, Json, Overwrite
from pocketbayes.cli.output import note, show, show_json
from pocketbayes.files.network_file import load, save
from pocketbayes.files.packing import Precision
from pocketbayes.inference.health import similarity
from pocketbayes.reporting.table import table
from pocketbayes.ship.mixing import mixture


def ensemble(
    parts: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run folders, checkpoints or .pocket files for the same task.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The .pocket file to write.")],
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="W1,W2,...", help="Weights of the members, with sum 1; equal by default."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="A data set to compare the members on; members far worse than the rest are reported."
        ),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="The split of --data: val or test.")] = "val",
    data_dir: DataDir = None,
    precision: Annotated[str, typer.Option("--precision", help="lossless, bfloat16 or int8.")] = "lossless",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Combine trained networks into one file, an ensemble that averages their predictions.

    Examples:
      pocketbayes ensemble runs/a runs/b runs/c --out big.pocket
      pocketbayes ensemble runs/a/model.pocket big.pocket --weights 0.25,0.75 --out bigger.pocket
    """
    from pocketbayes.recipes import network_file

    if out.exists() and not overwrite:
        raise UserError(f"{out} exists: add --overwrite or choose another --out")
    Precision.of(precision)
    compared = None
    if data is not None:
        file = network_file(parts[0])
        first = load(file)
        compared = load_for(file, first, data_of(file, first, recipe_beside(file), data, [])[0], split, data_dir)
    net = mixture(parts, _numbers(weights), data=compared)
    size = save(net, out, precision=precision)
    shares = [share / len(net) for share in net.shares()]
    found = {
        "network": str(out),
        "members": len(net),
        "weights": shares,
        "bytes": size,
        "similarity": similarity(net),
    }
    if json:
        show_json(found)
        return
    show(table([{**found, "weights": ", ".join(f"{share:.3g}" for share in shares)}]))
    note(f"saved {out}; make it small: pocketbayes compress {out} --out small.pocket")


def _numbers(text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--weights {text}: give numbers separated by commas, such as 0.5,0.3,0.2") from None
