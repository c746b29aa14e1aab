"""`pocketbayes predict`."""

from __future__ import annotations

import colorsys
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import torch
import typer

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.calibration import check_level
from pocketbayes.base.errors import UserError, collecting_warnings, warn
from pocketbayes.base.progress import display
from pocketbayes.cli.datasets import data_of, load_for, recipe_beside
from pocketbayes.cli.options import Adaptive, DataDir, Json, Propagation, Samples, Seed
from pocketbayes.cli.output import show, show_json
from pocketbayes.data import Info, read_inputs
from pocketbayes.data.folders import require
from pocketbayes.data.request import Split
from pocketbayes.files.network_file import load
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.evaluation import stream
from pocketbayes.inference.metrics import abstention
from pocketbayes.inference.prediction import predict as answer
from pocketbayes.network import Net, members
from pocketbayes.propagation import Ask, find_propagation
from pocketbayes.reporting.table import bar, table

if TYPE_CHECKING:
    from pocketbayes.recipes import DataPart

MOST_ROWS = 100
"""Largest number of rows in a table; JSON has all of them."""
BAR = 8
NATS = ("entropy", "epistemic", "aleatoric")
REAL = ("mean", "std", "epistemic", "aleatoric")


def predict(
    net: Annotated[Path, typer.Argument(metavar="NET", help="A .pocket file or a run folder.")],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Images, rows of a .csv table, or arrays: .npy, or .npz with x."),
    ],
    samples: Samples = None,
    propagation: Propagation = None,
    adaptive: Adaptive = False,
    seed: Seed = 0,
    abstain_above: Annotated[
        float | None, typer.Option("--abstain-above", min=0, help="Abstain if the entropy exceeds this many nats.")
    ] = None,
    target_risk: Annotated[
        float | None,
        typer.Option(
            "--target-risk", help="Choose the threshold for this error rate among the predictions kept, such as 0.02."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Data to choose the threshold on; by default the network's own data."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="The split of these data: val, train or test.")] = "val",
    level: Annotated[
        float | None,
        typer.Option(
            "--level", help="Also print intervals, or sets of classes, that contain the truth with this probability."
        ),
    ] = None,
    maps: Annotated[
        Path | None,
        typer.Option("--maps", help="Segmentation: a folder for images of the class and uncertainty of every pixel."),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Predict classes or numbers for images, tables or arrays, with uncertainty.

    Total uncertainty (entropy, in nats) is the sum of epistemic uncertainty, which more training data would reduce, and
    aleatoric uncertainty, which they would not. Images are scaled to the network's input size; arrays hold bytes, or
    numbers from 0 to 1 (images) or in their original units (tables).

    Examples:
      pocketbayes predict runs/digits-bbb seven.png
      pocketbayes predict runs/digits-bbb seven.png --target-risk 0.02
      pocketbayes predict runs/houses new-houses.csv --level 0.9
      pocketbayes predict runs/streets street.jpg --maps maps
      pocketbayes predict five.pocket cat.png --adaptive
    """
    from pocketbayes.recipes import network_file
    from pocketbayes.recipes.parts import check_input

    if propagation is not None:
        find_propagation(propagation)
    if abstain_above is not None and target_risk is not None:
        raise UserError("--abstain-above sets a threshold and --target-risk chooses one: give only one of them")
    file = network_file(net)
    network, recipe = load(file), recipe_beside(file)
    samples = samples or (recipe.samples if recipe else 30)
    first = members(network)[0]
    with collecting_warnings() as problems:
        inputs = {path: read_inputs(path, first.info) for path in files}
    for path, x in inputs.items():
        check_input(first, x[0].to(first.device), str(net), str(path))
    pixels = first.info is not None and first.info.task == "segmentation"
    if pixels and not (abstain_above is None and target_risk is None):
        raise UserError(f"{net} predicts every pixel: abstention is for whole inputs; use --maps")
    if maps is not None and not pixels:
        raise UserError(f"--maps is for segmentation, but {net} predicts whole inputs")
    if maps is not None and len({path.stem for path in files}) < len(files):
        raise UserError(
            "--maps names its images after the input files, and two of these have the same name: run them separately"
        )
    if level is not None:
        check_level(level)
        if pixels:
            raise UserError(f"{net} predicts every pixel: --level is for whole inputs")
        if first.conformal is None:
            problems.append(
                f"{net} is not calibrated: its sets and intervals may miss the level; run pocketbayes calibrate first"
            )
    abstention = None if abstain_above is None else {"threshold": abstain_above}
    if target_risk is not None:
        given = Ask(samples, propagation, seed)
        part, _ = data_of(file, network, recipe, data, [])
        abstention = _chosen(file, network, target_risk, part, split, data_dir, given)
    rows = []
    for path, x in inputs.items():
        with collecting_warnings() as found:
            prediction = answer(network, x, samples, propagation, seed=seed, adaptive=adaptive or None)
        problems += [f"{path}: {message}" for message in found]
        describe = _pixels if pixels else _answer
        described = [{"file": str(path), "index": i, **describe(prediction, i, first.info)} for i in range(len(x))]
        if level is not None:
            described = [{**row, **likely} for row, likely in zip(described, _likely(prediction, level, first.info))]
        if adaptive and prediction.passes is not None:
            described = [{**row, "passes": count} for row, count in zip(described, prediction.passes.tolist())]
        rows += described
        if maps is not None:
            _draw(prediction, maps, path.stem)
    if abstention is not None:
        if "probs" not in rows[0]:
            raise UserError(f"{net} predicts numbers: only classifiers abstain, by their total uncertainty in nats")
        rows = [{**row, "abstains": row["entropy"] > abstention["threshold"]} for row in rows]
    for message in problems:
        warn(message)
    if json:
        threshold = {} if abstention is None else {"abstention": abstention}
        show_json({"network": str(net), "samples": samples, **threshold, "predictions": rows, "warnings": problems})
        return
    show(_table(rows))
    if abstention is not None:
        show(_explained(abstention, sum(row["abstains"] for row in rows), len(rows)))


def _chosen(
    file: Path,
    net: Net,
    target_risk: float,
    part: DataPart,
    split: str,
    data_dir: Path | None,
    ask: Ask,
) -> dict[str, Any]:
    """Choose the threshold of total uncertainty for a risk on validation data, and return its results there."""
    check_choice("split", split, get_args(Split))
    try:
        dataset = load_for(file, net, part, split, data_dir)
    except UserError as error:
        raise UserError(f"{error}; a threshold can be chosen on other data with --data or --split") from None
    if dataset.info.task != "classification":
        raise UserError(f"--target-risk is for classification, not for {dataset.info.task}")
    uncertainty, correct = [], []
    with display() as bar:
        bar.begin(f"{part.name}, {split}", len(dataset))
        for passes, y in stream(net, dataset, ask):
            prediction = passes.summary()
            uncertainty.append(prediction.entropy.cpu())
            correct.append((prediction.mean.argmax(1) == y).cpu())
            bar.advance(len(y))
    found = abstention(torch.cat(uncertainty), torch.cat(correct), target_risk)
    return {**asdict(found), "target_risk": target_risk, "data": part.name, "split": split}


def _explained(abstention: dict[str, Any], abstained: int, asked: int) -> str:
    text = f"abstains above {abstention['threshold']:.4g} nats of total uncertainty: {abstained} of {asked} here"
    if "target_risk" not in abstention:
        return text
    where = f"{abstention['count']} {abstention['split']} examples of {abstention['data']}"
    wrong, wanted = f"{100 * abstention['risk']:.2f} %", f"{100 * abstention['target_risk']:g} %"
    covered = f"{100 * abstention['coverage']:.1f} %"
    return f"{text}\nchosen on {where}: {covered} of them predicted, {wrong} of these wrong (target: at most {wanted})"


def _likely(prediction: Prediction, level: float, info: Info | None) -> list[dict[str, Any]]:
    """Return the interval or the set of classes that holds the truth with probability `level`, for each input."""
    if prediction.probs is not None:
        return [
            {"set": [_name(label, info) for label in row.nonzero().flatten().tolist()]}
            for row in prediction.sets(level).cpu()
        ]
    units = (info.target_std, info.target_mean) if info else (1.0, 0.0)
    scale, shift = (torch.tensor(value) for value in units)
    low, high = (end.cpu() * scale + shift for end in prediction.interval(level))
    return [{"interval": torch.stack([low[i], high[i]], -1).tolist()} for i in range(len(low))]


def _answer(prediction: Prediction, index: int, info: Info | None) -> dict[str, Any]:
    """Return the prediction of one input as JSON values."""
    if prediction.probs is None:
        units = (info.target_std, info.target_mean) if info else (1.0, 0.0)
        scale, shift = (torch.tensor(value) for value in units)
        values = {name: getattr(prediction, name)[index].cpu() * scale for name in REAL}
        values["mean"] = values["mean"] + shift
        return {name: value.flatten().tolist() for name, value in values.items()}
    probs = prediction.probs[index]
    label = int(probs.argmax())
    return {
        "class": label,
        "name": _name(label, info),
        "probability": float(probs.max()),
        **{name: float(getattr(prediction, name)[index]) for name in NATS},
        "probs": probs.tolist(),
    }


def _pixels(prediction: Prediction, index: int, info: Info | None) -> dict[str, Any]:
    """Summarise a segmentation: the fraction of each class, the most frequent one, and means over the pixels."""
    assert prediction.probs is not None
    probs = prediction.probs[index]
    shares = probs.argmax(0).flatten().bincount(minlength=len(probs)) / probs[0].numel()
    label = int(shares.argmax())
    return {
        "class": label,
        "name": _name(label, info),
        "share": float(shares[label]),
        "probability": float(probs.max(0).values.mean()),
        **{name: float(getattr(prediction, name)[index].mean()) for name in NATS},
        "shares": shares.tolist(),
    }


def _name(label: int, info: Info | None) -> str:
    known = info.class_names if info else None
    return known[label] if known and label < len(known) else str(label)


def _draw(prediction: Prediction, folder: Path, stem: str) -> None:
    """Draw two images per input: classes by colour, and total uncertainty from black (none) to white (maximal)."""
    assert prediction.probs is not None
    pillow, classes = require("PIL.Image"), prediction.probs.shape[1]
    hues = (colorsys.hsv_to_rgb(k * 0.618 % 1, 0.65, 0.95) for k in range(classes))
    palette = [round(255 * part) for colour in hues for part in colour]
    labels = prediction.probs.argmax(1).byte().cpu().numpy()
    doubts = (255 * prediction.entropy / math.log(classes)).clamp(0, 255).round().byte().cpu().numpy()
    for i in range(len(labels)):
        name = stem if len(labels) == 1 else f"{stem}-{i}"
        picture = pillow.fromarray(labels[i]).convert("P")
        picture.putpalette(palette)
        for what, drawn in (("classes", picture), ("uncertainty", pillow.fromarray(doubts[i]))):
            write_atomically(folder / f"{name}-{what}.png", partial(drawn.save, format="PNG"))


def _table(rows: list[dict[str, Any]]) -> Any:
    many = {row["file"] for row in rows if row["index"]}
    shown = []
    for row in rows[:MOST_ROWS]:
        cells: dict[str, Any] = {"input": f"{row['file']}[{row['index']}]" if row["file"] in many else row["file"]}
        if "class" in row:
            most = math.log(len(row["shares" if "shares" in row else "probs"]))  # the largest entropy
            percent = f"{100 * row['probability']:5.1f} %"
            name = f"({row['name']}?)" if row.get("abstains") else row["name"]
            if "share" in row:
                name = f"{name} ({100 * row['share']:.0f} % of the pixels)"
            cells |= {"class": name, "probability": _with_bar(percent, row["probability"])}
            for name, heading in (("entropy", "total"), ("epistemic", "epistemic"), ("aleatoric", "aleatoric")):
                cells[heading] = _with_bar(f"{row[name]:.3f}", row[name] / most if most else 0.0)
            if "passes" in row:
                cells["passes"] = row["passes"]
            if "set" in row:
                cells["set"] = ", ".join(row["set"])
        else:
            for name in REAL:
                cells[name] = ", ".join(map(_written, row[name]))
            if "interval" in row:
                cells["interval"] = ", ".join(f"{_written(low)} to {_written(high)}" for low, high in row["interval"])
        shown.append(cells)
    left = len(rows) - len(shown)
    made = table(shown)
    if left:
        made.caption = f"and {left} more: --json has them all"
    return made


def _written(value: float) -> str:
    """Write prices and populations without an exponent."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _with_bar(text: str, fraction: float) -> str:
    return f"{text} {bar(fraction, BAR)}"
