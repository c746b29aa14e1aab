"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The folder that holds the data; else $POCKETBAYES_DATA, else ./data."),
]
Samples = Annotated[
    int | None,
    typer.Option("--samples", min=1, max=100_000, help="Passes through the network; else the run's own, or 30."),
]
Propagation = Annotated[
    str | None,
    typer.Option("--propagation", help="mean, sample, local, flipout, moments or linear; else what suits the network."),
]
Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive", help="Ask members one after another until an answer is settled; calibrate --adaptive fits when."
    ),
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Networks that are trained at once, on Ray; 0: one after another.")
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="A running Ray cluster; else processes of this machine."),
]
