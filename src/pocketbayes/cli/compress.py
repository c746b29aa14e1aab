"""`pocketbayes compress`."""

from __future__ import annotations

import json as json_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from pocketbayes.base.allocation import keep_freed_activations
from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.errors import UserError
from pocketbayes.cli.datasets import data_of, load_for, recipe_beside
from pocketbayes.cli.options import DataDir, DataSettings, Json, Overwrite, OwnData, Seed
from pocketbayes.cli.output import log, note, show, show_json
from pocketbayes.files.network_file import load
from pocketbayes.files.packing import Precision
from pocketbayes.network import members
from pocketbayes.reporting.figures import save
from pocketbayes.reporting.figures.tradeoff import rate_distortion
from pocketbayes.reporting.table import table
from pocketbayes.ship.compression import compress as run

VAL_FRACTION = 0.1
"""Fraction of the training data used if the run has no validation data."""
MUCH_LOST = 0.1
"""Loss in nats of validation NLL above which a message is printed."""


def compress(
    network: Annotated[Path, typer.Argument(metavar="NET", help="A .pocket file or a run folder.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write; the measurements are written next to it.")],
    bits: Annotated[
        float | None, typer.Option("--bits", min=0, help="Budget in bits per weight, for the whole file.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=1, help="Budget in bytes for the whole file.")
    ] = None,
    max_nll_loss: Annotated[
        float | None,
        typer.Option(
            "--max-nll-loss",
            min=0,
            help="Largest increase of the validation NLL, in nats; 0.01 and one standard error if no budget is given.",
        ),
    ] = None,
    max_accuracy_loss: Annotated[
        float | None,
        typer.Option("--max-accuracy-loss", min=0, help="Largest loss of validation accuracy, such as 0.01."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", help="Keep the network's storage, as lossless, bfloat16 or int8, instead of coding."
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option("--steps", min=0, help="Training steps for files near the budget, with the network as teacher."),
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Skip training, whatever --steps says.")] = False,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Weight samples per measurement.")] = 10,
    seed: Seed = 0,
    data: OwnData = None,
    data_dir: DataDir = None,
    settings: DataSettings = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Compress a trained network to a given size, or as far as a given loss of quality allows.

    Codes the weights with codebooks from fine to coarse, measures each on the validation data, and writes the best file
    within the budget, with the trade-off between size and quality in FILE.json and FILE.png. All measurements are kept
    in FILE.sweep: an interrupted sweep resumes, and another budget reuses them.

    Examples:
      pocketbayes compress runs/digits-bbb --out small.pocket
      pocketbayes compress runs/digits-bbb --out small.pocket --bits 6
      pocketbayes compress net.pocket --out small.pocket --max-bytes 80000 --quick
    """
    from pocketbayes.recipes import check_data, network_file

    if out.suffix in (".json", ".png"):
        raise UserError(f"--out {out}: the measurements need this name; write to {out.with_suffix('.pocket')}")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists: add --overwrite or choose another --out")
    if precision is not None:
        Precision.of(precision)
    keep_freed_activations()
    file = network_file(network)
    net = load(file)
    part, _ = data_of(file, net, recipe_beside(file), data, settings or [])
    if part.settings.get("val_fraction") == 0:
        part = check_data({"name": part.name, **part.settings, "val_fraction": VAL_FRACTION})
        log(f"the run has no validation data: {VAL_FRACTION:.0%} of its training data are used instead")
    train, val = (load_for(file, net, part, split, data_dir) for split in ("train", "val"))
    found = run(
        net,
        train,
        val,
        bits=bits,
        max_bytes=max_bytes,
        max_nll_loss=max_nll_loss,
        max_accuracy_loss=max_accuracy_loss,
        precision=precision,
        steps=0 if quick else steps,
        samples=samples,
        seed=seed,
        out=out.with_suffix(".sweep"),
    )
    size = found.save(out)
    result: dict[str, Any] = {"network": str(out), "from": str(file), "bytes": size, **found.to_json()}
    write_atomically(out.with_suffix(".json"), json_module.dumps(result, indent=1))
    plot = _draw(out.with_suffix(".png"), result)
    if json:
        show_json({**result, "plot": plot and str(plot)})
        return
    has_stds = any(network.has_stds for network in members(net))
    on = f"{len(val)} validation examples" + (f", {samples} samples each" if has_stds else "")
    rows = [_row("before", found.before.to_json()), *(_row("", trial) for trial in result["front"])]
    show(table([*rows, _row("chosen", result["chosen"])], title=f"{file} → {out}, {on}"))
    if bits_of := found.layer_bits:
        fewest, most = (end(bits_of, key=lambda name: bits_of[name]) for end in (min, max))
        show(
            f"bits per weight by layer: {bits_of[fewest]:.2f} ({fewest}) to {bits_of[most]:.2f} ({most}); "
            f"pocketbayes inspect {out} lists all"
        )
    lost = found.chosen.nll - found.before.nll
    if lost > MUCH_LOST:
        show(f"NLL rises by {lost:.2f} nats: allow more bytes (--max-nll-loss finds how many), or more --steps")
    note(f"size against quality: {out.with_suffix('.json')}" + (f" and {plot}" if plot else ""))


def _draw(path: Path, result: dict[str, Any]) -> Path | None:
    """Draw size against quality, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        note("no figure: pip install 'pocketbayes[report]' to draw it")
        return None

    return save(rate_distortion(result), path)


def _row(name: str, trial: dict[str, Any]) -> dict[str, Any]:
    how = trial["how"]
    accuracy = {} if trial["accuracy"] is None else {"accuracy": trial["accuracy"]}
    coded = "lam" in how
    return {
        "": name,
        "weights": f"codes by {how['units']}" if coded else f"its own, {how['kept']}",
        "lambda": f"{how['lam']:.3g}" if coded else "",
        "steps": how.get("steps", ""),
        **accuracy,
        "nll": trial["nll"],
        "bits per weight": f"{trial['bits']:.2f}",
        "bytes": trial["bytes"],
    }
