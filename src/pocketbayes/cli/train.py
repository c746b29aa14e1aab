"""`pocketbayes train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.base.errors import UserError
from pocketbayes.base.process_group import is_first
from pocketbayes.base.run_folder import MODEL_FILE, RECIPE_FILE
from pocketbayes.cli.options import DataDir, Json, Ray, Workers
from pocketbayes.cli.output import note, show, show_json
from pocketbayes.reporting.table import measured_on, shown, table
from pocketbayes.training import checkpoint

if TYPE_CHECKING:
    from pocketbayes.recipes.experiment import Outcome


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe's name (see [bold]list recipes[/]), its YAML file, or a run folder."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="A method, instead of the recipe's."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A model, instead of the recipe's, or a .pocket file to start from."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="A data set, instead of the recipe's, or an .npz file with x and y."),
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=0, help="Number of epochs.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder; by default runs/NAME.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights, data order and noise.")] = None,
    data_dir: DataDir = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe, such as training.lr=0.01."),
    ] = None,
    search_beta: Annotated[
        bool, typer.Option("--search-beta", help="Search the weight of the KL on validation data first.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    workers: Workers = 0,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Train a network from a recipe, options, or both, and measure it on the test data.

    Examples:
      pocketbayes train digits-bbb
      pocketbayes train --method lrt --model lenet5 --data mnist --epochs 5 --set method.prior_std=0.5
      pocketbayes train --out runs/digits-bbb --resume
      pocketbayes train --method ensemble --model lenet5 --data mnist --workers 5
    """
    from pocketbayes.recipes import check, override, read_tree
    from pocketbayes.recipes.experiment import run

    if resume and overwrite:
        raise UserError("--resume continues a run, --overwrite discards it: choose one")
    if resume and recipe is None and out is None:
        raise UserError("--resume needs the run folder: give it with --out")
    if resume and recipe is None and out is not None and not (out / RECIPE_FILE).is_file():
        raise UserError(f"nothing to resume: {out} has no {RECIPE_FILE}; give a run folder with --out")
    if not (recipe or method or resume) and out is not None and (out / RECIPE_FILE).is_file():
        raise UserError(f"{out} contains a run: add --resume to continue it, or give a recipe and --overwrite")
    source = recipe if recipe is not None else out if resume else None
    tree: dict[str, Any] = {} if source is None else read_tree(source)
    tree |= {key: value for key, value in {"method": method, "model": model, "data": data}.items() if value is not None}
    for key, value in {"training.epochs": epochs, "seed": seed}.items():
        if value is not None:
            override(tree, f"{key}={value}")
    if search_beta:
        tree.setdefault("search", {})
    for item in settings or ():
        override(tree, item)
    checked = check(tree)
    name = _name(recipe, [checked.method.name, checked.model.name, checked.data.name])
    folder = out or Path("runs") / name
    if is_first():
        note(f"{checked.method.name} · {checked.model.name} · {checked.data.name} → {folder}")
    try:
        outcome = run(checked, folder, data_dir, resume=resume, overwrite=overwrite, workers=workers, ray=ray)
    except KeyboardInterrupt:
        if not is_first():
            raise KeyboardInterrupt("") from None
        begun = checkpoint.has_begun(folder)
        again = f"; resume with: pocketbayes train --out {folder} --resume" if begun else " before the first checkpoint"
        raise KeyboardInterrupt(f"stopped{again}") from None
    if is_first():
        _show(outcome, json)


def _show(outcome: Outcome, json: bool) -> None:
    folder = outcome.folder
    if json:
        show_json(outcome.to_json())
        return
    size = {"values": outcome.net.census().values, "bytes": outcome.bytes}
    on = measured_on(outcome.examples, outcome.split, outcome.recipe.samples)
    show(table([{**shown(outcome.measures), **size}], title=f"{folder}, {on}"))
    note(f"saved {folder / MODEL_FILE} after {outcome.seconds:.0f} s; look inside: pocketbayes inspect {folder}")


def _name(recipe: str | None, parts: list[str]) -> str:

    if recipe is None:
        return "-".join(Path(part).stem.replace(":", "-") for part in parts)
    path = Path(recipe)
    return path.resolve().parent.name if path.name == RECIPE_FILE else path.stem if path.suffix else path.name
