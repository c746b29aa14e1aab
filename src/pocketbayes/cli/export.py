"""`pocketbayes export`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from pocketbayes.base.errors import UserError
from pocketbayes.cli.options import Json, Seed
from pocketbayes.cli.output import note, show, show_json, styled
from pocketbayes.data.description import MAX_INPUT_VALUES
from pocketbayes.files.network_file import load
from pocketbayes.ship.onnx import export_members, export_onnx


def export(
    net: Annotated[Path, typer.Argument(metavar="NET", help="A .pocket file or a run folder.")],
    out: Annotated[Path, typer.Option("--out", help="The .onnx file to write.")],
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="sample: draws weights in the graph; moments: mean and variance in one pass; mean: only the mean.",
        ),
    ] = "sample",
    samples: Annotated[int, typer.Option("--samples", min=1, help="Default number of weight samples.")] = 30,
    seed: Seed = 0,
    readout: Annotated[
        str, typer.Option("--readout", help="How moments become probabilities: probit or taylor.")
    ] = "probit",
    shape: Annotated[
        str | None,
        typer.Option("--shape", help="Shape of one input, such as 3,32,32, if the network does not know it."),
    ] = None,
    each: Annotated[bool, typer.Option("--each-member", help="Write one graph per member: NAME-01.onnx, ...")] = False,
    json: Json = False,
) -> None:
    """Export a network as an ONNX graph that predicts with uncertainty, for runtimes without PyTorch.

    Examples:
      pocketbayes export runs/digits-2dgbnn --out digits.onnx
      pocketbayes export five.pocket --out five.onnx --each-member
    """
    from pocketbayes.recipes import network_file

    if out.suffix != ".onnx":
        raise UserError(f"--out {out}: the name must end in .onnx")
    network = load(network_file(net))
    example = None if shape is None else torch.rand(2, *_sizes(shape))
    note(f"tracing {net}")
    settings: dict[str, Any] = {"seed": seed, "example": example, "readout": readout}
    if each:
        files = export_members(network, out, mode, samples, **settings)  # type: ignore[arg-type]
        size = sum(file.stat().st_size for file in files)
    else:
        files = [out]
        size = export_onnx(network, out, mode, samples, **settings)  # type: ignore[arg-type]
    found = {"network": str(net), "file": str(files[0]), "mode": mode, "bytes": size}
    if each:
        found["files"] = [str(file) for file in files]
    if json:
        show_json(found)
    else:
        for file in files:
            show(styled("bold", file, f" {mode}, {file.stat().st_size:,} B"))


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or math.prod(sizes) > MAX_INPUT_VALUES:
        raise UserError(
            f"--shape {text!r}: give the sizes of one input, such as 3,32,32, with at most {MAX_INPUT_VALUES} numbers"
        )
    return sizes
