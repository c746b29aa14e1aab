"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The data folder; by default $POCKETBAYES_DATA, then ./data."),
]
OwnData = Annotated[
    str | None, typer.Option("--data", help="A data set or an .npz file; by default the network's own data.")
]
DataSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change an option of the data, such as data.subset=1000."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
Samples = Annotated[
    int | None,
    typer.Option("--samples", min=1, max=100_000, help="Weight samples; by default the run's number, or 30."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=(1 << 63) - 1, help="Seed of the random draws.")]
Propagation = Annotated[
    str | None,
    typer.Option(
        "--propagation", help="mean, sample, local, flipout, moments or linear; by default the network's own."
    ),
]
Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive", help="Stop adding members or draws once a prediction is settled; first run calibrate --adaptive."
    ),
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Networks to train in parallel on Ray; 0 trains one after another.")
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Address of a Ray cluster; by default processes on this machine."),
]
