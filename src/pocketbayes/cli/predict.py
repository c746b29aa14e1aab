"""`pocketbayes predict`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli.options import DataDir, Json, Propagation, Samples
from pocketbayes.cli.output import show, show_json
from pocketbayes.errors import UnknownNameError, UserError

if TYPE_CHECKING:
    from pocketbayes.config import DataPart
    from pocketbayes.data import Info
    from pocketbayes.network import Net
    from pocketbayes.predict import Prediction

MOST_ROWS = 100
"""Rows that a table shows; JSON has all of them."""
BAR = 8
REAL = ("mean", "std", "epistemic", "aleatoric")


def predict(
    net: Annotated[Path, typer.Argument(metavar="NET", help="A .pocket file or the folder of a run.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Images, or arrays of inputs: .npy, or .npz with x.")
    ],
    samples: Samples = None,
    propagation: Propagation = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
    abstain_above: Annotated[
        float | None, typer.Option("--abstain-above", min=0, help="Give no answer above so many nats of uncertainty.")
    ] = None,
    target_risk: Annotated[
        float | None,
        typer.Option("--target-risk", help="Choose that threshold: so many wrong answers among those given, 0.02 say."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="The data to choose it on; else the data that the network was trained on."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Of these data: val, train or test.")] = "val",
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Ask a network about images or arrays: its answer, and how sure it is.

    Total uncertainty (entropy, in nats) is the sum of epistemic, which more training data would lessen, and aleatoric,
    which they would not. Images are scaled to the network's input size; arrays hold bytes, or numbers from 0 to 1
    (images) or in their original units (tables).

    Examples:
      pocketbayes predict runs/digits-bbb seven.png
      pocketbayes predict runs/digits-bbb seven.png --target-risk 0.02
    """
    from pocketbayes.artifact import load
    from pocketbayes.cli.datasets import data_of, recipe_beside
    from pocketbayes.config import network_file
    from pocketbayes.config.parts import check_input
    from pocketbayes.data import read_inputs
    from pocketbayes.network import check_propagation, members
    from pocketbayes.predict import predict as answer

    if propagation is not None:
        check_propagation(propagation)
    if abstain_above is not None and target_risk is not None:
        raise UserError("--abstain-above is a threshold, --target-risk chooses one: give one of them")
    file = network_file(net)
    network, recipe = load(file), recipe_beside(file)
    samples = samples or (recipe.samples if recipe else 30)
    first = members(network)[0]
    inputs = {path: read_inputs(path, first.info) for path in files}
    for path, x in inputs.items():
        check_input(first, x[0].to(first.device), str(net), str(path))
    abstention = None if abstain_above is None else {"threshold": abstain_above}
    if target_risk is not None:
        given = {"samples": samples, "propagation": propagation, "seed": seed}
        part, _ = data_of(file, network, recipe, data, [])
        abstention = _chosen(file, network, target_risk, part, split, data_dir, given)
    rows = []
    for path, x in inputs.items():
        prediction = answer(network, x, samples, propagation, seed=seed)
        rows += [{"file": str(path), "index": i, **_answer(prediction, i, first.info)} for i in range(len(x))]
    if abstention is not None:
        if "probs" not in rows[0]:
            raise UserError(f"{net} predicts numbers: only classifiers abstain, by their total uncertainty in nats")
        rows = [{**row, "abstains": row["entropy"] > abstention["threshold"]} for row in rows]
    if json:
        found = {} if abstention is None else {"abstention": abstention}
        show_json({"network": str(net), "samples": samples, **found, "predictions": rows})
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
    given: dict[str, Any],
) -> dict[str, Any]:
    """The threshold of total uncertainty that keeps the risk on validation data, and what it does there."""
    from dataclasses import asdict

    import torch

    from pocketbayes.cli.datasets import check_fit
    from pocketbayes.evaluate import stream
    from pocketbayes.metrics import abstention
    from pocketbayes.progress import display

    if split not in ("train", "val", "test"):
        raise UnknownNameError("split", split, ("train", "val", "test"))
    try:
        dataset = part.load(split, data_dir)  # type: ignore[arg-type]
    except UserError as error:
        raise UserError(f"{error}; a threshold can be chosen on other data with --data or --split") from None
    check_fit(file, net, dataset)
    if dataset.info.task != "classification":
        raise UserError(f"--target-risk counts wrong answers, which {dataset.info.task} has none of")
    uncertainty, correct = [], []
    with display() as bar:
        bar.begin(f"{part.name}, {split}", len(dataset))
        for passes, y in stream(net, dataset, **given):
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
    return (
        f"{text}\nchosen on {where}: {covered} of them answered, {wrong} of the answers wrong (at most {wanted} wanted)"
    )


def _answer(prediction: Prediction, index: int, info: Info | None) -> dict[str, Any]:
    """One input's answer as plain values; of an image of labels, the mean over its pixels."""
    if prediction.probs is None:
        scale, shift = (info.target_std, info.target_mean) if info else (1.0, 0.0)
        values = {name: getattr(prediction, name)[index] * scale for name in REAL}
        values["mean"] = values["mean"] + shift
        return {name: value.flatten().tolist() for name, value in values.items()}
    probs = prediction.probs[index]
    best = probs.argmax(0)
    label = int(best.flatten().mode().values)
    known = info.class_names if info else None
    return {
        "class": label,
        "name": known[label] if known and label < len(known) else str(label),
        "probability": float(probs.max(0).values.mean()),
        "entropy": float(prediction.entropy[index].mean()),
        "epistemic": float(prediction.epistemic[index].mean()),
        "aleatoric": float(prediction.aleatoric[index].mean()),
        "probs": probs.flatten(1).mean(1).tolist() if probs.ndim > 1 else probs.tolist(),
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    from pocketbayes.report.table import table

    many = {row["file"] for row in rows if row["index"]}
    shown = []
    for row in rows[:MOST_ROWS]:
        cells: dict[str, Any] = {"input": f"{row['file']}[{row['index']}]" if row["file"] in many else row["file"]}
        if "probs" in row:
            most = math.log(len(row["probs"]))  # nats of a network that knows nothing
            percent = f"{100 * row['probability']:5.1f} %"
            name = f"({row['name']}?)" if row.get("abstains") else row["name"]
            cells |= {"class": name, "probability": _with_bar(percent, row["probability"])}
            for name, heading in (("entropy", "total"), ("epistemic", "epistemic"), ("aleatoric", "aleatoric")):
                cells[heading] = _with_bar(f"{row[name]:.3f}", row[name] / most if most else 0.0)
        else:
            for name in REAL:
                cells[name] = ", ".join(f"{value:.4g}" for value in row[name])
        shown.append(cells)
    left = len(rows) - len(shown)
    made = table(shown)
    if left:
        made.caption = f"and {left} more: --json has them all"
    return made


def _with_bar(text: str, fraction: float) -> str:
    from pocketbayes.report.table import bar

    return f"{text} {bar(fraction, BAR)}"
