"""`pocketbayes evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli.options import DataDir, Json, Propagation, Samples
from pocketbayes.cli.output import show, show_json
from pocketbayes.errors import UnknownNameError, UserError

if TYPE_CHECKING:
    from pocketbayes.config import DataPart
    from pocketbayes.network import Net


def evaluate(
    nets: Annotated[list[Path], typer.Argument(metavar="NET...", help=".pocket files or folders of runs.")],
    data: Annotated[
        str | None,
        typer.Option("--data", help="A data set, or an .npz file; else the one that the network was trained on."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="train, val or test.")] = "test",
    samples: Samples = None,
    propagation: Propagation = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
    data_dir: DataDir = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change an option of the data, such as data.subset=1000."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure trained networks: accuracy, likelihood, calibration, size.

    Examples:
      pocketbayes evaluate runs/digits-bbb
      pocketbayes evaluate a.pocket b.pocket --data mnist --samples 100
    """
    from pocketbayes.artifact import load
    from pocketbayes.config import network_file
    from pocketbayes.experiment import census_json, measure
    from pocketbayes.network import check_propagation
    from pocketbayes.report.table import shown, table

    if split not in ("train", "val", "test"):
        raise UnknownNameError("split", split, ("train", "val", "test"))
    if propagation is not None:
        check_propagation(propagation)
    results: list[dict[str, Any]] = []
    for path in nets:
        file = network_file(path)
        net = load(file)
        part, own_samples = _data_of(file, net, data, settings or [])
        dataset = part.load(split, data_dir)  # type: ignore[arg-type]
        _check_fit(file, net, dataset)
        count = samples or own_samples
        measures = measure(net, dataset, count, propagation, seed=seed, title=f"{path}")
        results.append(
            {
                "network": str(path),
                "data": {"name": part.name, **part.settings},
                "split": split,
                "samples": count,
                "propagation": propagation,
                "measures": measures,
                "census": census_json(net.census()),
                "bytes": file.stat().st_size,
            }
        )
    if json:
        show_json({"results": results})
        return
    rows = [
        {"network": r["network"], **shown(r["measures"]), "values": r["census"]["values"], "bytes": r["bytes"]}
        for r in results
    ]
    datasets = dict.fromkeys(r["data"]["name"] for r in results)
    show(table(rows, title=f"{', '.join(datasets)}, {split}"))


def _data_of(file: Path, net: Net, given: str | None, settings: list[str]) -> tuple[DataPart, int]:
    """The data to measure on, with the options of the run beside the file if it is the same data set; and samples."""
    from pocketbayes.config import RECIPE_FILE, check_data, override, read
    from pocketbayes.data import names
    from pocketbayes.network import members

    tree: dict[str, Any] = {}
    samples = 30
    if (file.parent / RECIPE_FILE).is_file():
        recipe = read(file.parent)
        samples = recipe.samples
        tree["data"] = recipe.to_tree()["data"]
    info = members(net)[0].info
    if given is not None:
        own = tree.get("data", {})
        if given != (own if isinstance(own, str) else own.get("name")):
            tree["data"] = given
    elif not tree and info is not None and info.name in names():
        tree["data"] = info.name
    if "data" not in tree:
        raise UserError(f"{file} does not say which data set it was trained on: name one with --data")
    for item in settings:
        if not item.startswith("data."):
            raise UserError(f"cannot set {item!r}: only options of the data can be changed here, such as data.subset=9")
        override(tree, item)
    return check_data(tree["data"]), samples


def _check_fit(file: Path, net: Net, dataset: Any) -> None:
    from pocketbayes.config.parts import check_input
    from pocketbayes.network import members

    network = members(net)[0]
    found = check_input(network, dataset[0][0].to(network.device), str(file), f"data set {dataset.info.name!r}")
    classes = dataset.info.classes
    if classes is not None and found and found[0] < classes:
        raise UserError(f"{file} knows {found[0]} classes, but data set {dataset.info.name!r} has {classes}")
