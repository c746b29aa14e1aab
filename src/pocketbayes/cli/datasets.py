"""The data for measuring a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbayes.base.errors import UserError
from pocketbayes.base.run_folder import RECIPE_FILE
from pocketbayes.data import Dataset, names
from pocketbayes.data.description import match_classes, match_features, match_preprocessing
from pocketbayes.data.folders import ImageFiles
from pocketbayes.likelihoods import task_of
from pocketbayes.network import Net, members

if TYPE_CHECKING:
    from pocketbayes.recipes import DataPart, Recipe


def recipe_beside(file: Path) -> Recipe | None:
    """Return the recipe in the folder of a network's file, if any."""
    from pocketbayes.recipes import read

    return read(file.parent) if (file.parent / RECIPE_FILE).is_file() else None


def data_of(
    file: Path, net: Net, recipe: Recipe | None, given: str | None, settings: list[str]
) -> tuple[DataPart, dict[str, Any]]:
    """Return the data for measuring, with the run's options if it is the same data set, and the options of OOD data."""
    from pocketbayes.recipes import check_data, override

    tree: dict[str, Any] = {} if recipe is None else {"data": recipe.to_tree()["data"]}
    info = members(net)[0].info
    if given is not None:
        own = tree.get("data", {})
        if given != (own if isinstance(own, str) else own.get("name")):
            tree["data"] = given
    elif not tree and info is not None and info.name in names() and info.name != "npz":
        tree["data"] = info.name
    if "data" not in tree:
        raise UserError(f"{file} does not record its data set: give a data set or an .npz file with --data")
    for item in settings:
        if not item.startswith(("data.", "ood.")):
            raise UserError(f"cannot set {item!r}: only options of the data can be set, such as data.subset=9")
        override(tree, item)
    return check_data(tree["data"]), tree.get("ood", {})


def load_for(file: Path, net: Net, part: DataPart, split: str, data_dir: Path | None) -> Dataset:
    """Load a split for the network, with the same classes and, unless options set it, the same preprocessing."""
    dataset = part.load(split, data_dir)  # type: ignore[arg-type]
    info = members(net)[0].info
    if info is not None and isinstance(dataset, ImageFiles):
        dataset = match_classes(dataset, info)
    if info is not None:
        dataset = match_features(dataset, info)
    if info is not None and not part.settings.keys() & {"mean", "std"}:
        dataset = match_preprocessing(dataset, info)
    check_fit(file, net, dataset)
    return dataset


def check_fit(file: Path, net: Net, dataset: Dataset, labels: bool = True) -> None:
    """Reject data that the network does not accept, or with more classes than it has."""
    from pocketbayes.recipes.parts import check_input

    network = members(net)[0]
    found = check_input(network, dataset[0][0].to(network.device), str(file), f"data set {dataset.info.name!r}")
    classes = dataset.info.classes
    if labels and classes is not None and task_of(network.likelihood) == "regression":
        raise UserError(f"{file} predicts numbers, but data set {dataset.info.name!r} has {classes} classes")
    if labels and classes is not None and found and found[0] < classes:
        raise UserError(f"{file} has {found[0]} classes, but data set {dataset.info.name!r} has {classes}")
