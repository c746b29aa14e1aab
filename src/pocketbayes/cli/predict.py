"""`pocketbayes predict`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli.options import Json, Propagation, Samples
from pocketbayes.cli.output import show, show_json

if TYPE_CHECKING:
    from pocketbayes.data import Info
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
    json: Json = False,
) -> None:
    """Ask a network about images or arrays: its answer, and how sure it is.

    Total uncertainty (entropy, in nats) is the sum of epistemic, which more training data would lessen, and aleatoric,
    which they would not. Images are scaled to the network's input size; arrays hold bytes, or numbers from 0 to 1
    (images) or in their original units (tables).

    Example:
      pocketbayes predict runs/digits-bbb seven.png
    """
    from pocketbayes.artifact import load
    from pocketbayes.cli.inputs import read_inputs
    from pocketbayes.config import network_file
    from pocketbayes.config.parts import check_input
    from pocketbayes.network import check_propagation, members
    from pocketbayes.predict import predict as answer

    if propagation is not None:
        check_propagation(propagation)
    network = load(network_file(net))
    first = members(network)[0]
    inputs = {file: read_inputs(file, first.info) for file in files}
    for file, x in inputs.items():
        check_input(first, x[0].to(first.device), str(net), str(file))
    rows = []
    for file, x in inputs.items():
        prediction = answer(network, x, samples or 30, propagation, seed=seed)
        rows += [{"file": str(file), "index": i, **_answer(prediction, i, first.info)} for i in range(len(x))]
    if json:
        show_json({"network": str(net), "samples": samples or 30, "predictions": rows})
    else:
        show(_table(rows))


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
            cells |= {"class": row["name"], "probability": _with_bar(percent, row["probability"])}
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
