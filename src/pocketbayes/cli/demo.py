"""`pocketbayes demo`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from torch import Tensor

from pocketbayes.base.run_folder import EVALUATION_FILE, MODEL_FILE, RECIPE_FILE
from pocketbayes.cli.options import Json
from pocketbayes.cli.output import note, show, show_json, styled
from pocketbayes.data import Info
from pocketbayes.inference.evaluation import evaluate
from pocketbayes.inference.prediction import predict
from pocketbayes.inference.suite import evaluate_suite
from pocketbayes.methods import METHODS
from pocketbayes.network import Mixture, members
from pocketbayes.reporting import report
from pocketbayes.reporting.table import bar, shown, table
from pocketbayes.ship.compression import compress

if TYPE_CHECKING:
    from pocketbayes.recipes.experiment import Outcome

PREFIX = "digits-"
"""Prefix of the recipes in the demo."""
SHADES = " ░▒▓█"
DRAWN = 3


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to write the runs to.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Train each method on the embedded digits, compare them, and write a report, without downloads.

    The report, report.html in the folder, shows results on test digits, rotated and noisy digits and, if Pillow is
    installed, patches of photographs as out-of-distribution data.
    """
    from pocketbayes import recipes as config
    from pocketbayes.recipes.experiment import run

    recipes = {name: config.read(name) for name in config.names() if name.startswith(PREFIX)}
    order = list(METHODS)
    outcomes: dict[str, Outcome] = {}
    with _one_thread():
        for name, recipe in sorted(recipes.items(), key=lambda item: order.index(item[1].method.name)):
            note(f"{name}: {recipe.about}")
            outcomes[name.removeprefix(PREFIX)] = run(recipe, out / name, overwrite=True, progress="bar")
        for name, outcome in list(outcomes.items()):
            if isinstance(outcome.net, Mixture):
                note(f"{name}: compressing all members below the size of one in float32")
                outcomes[f"{name}-coded"] = _coded(outcome)
        for outcome in outcomes.values():
            _evaluate(outcome)
        page = report([outcome.folder for outcome in outcomes.values()], out / "report.html")
        uncertain = _most_uncertain(outcomes)
    if json:
        results = {name: outcome.to_json() for name, outcome in outcomes.items()}
        show_json({"folder": str(out), "report": str(page), "results": results, "most_uncertain": uncertain})
        return
    rows = [
        {
            "method": name,
            **shown(outcome.measures),
            "values": outcome.net.census().values,
            "bytes": outcome.bytes,
            "seconds": outcome.seconds,
        }
        for name, outcome in outcomes.items()
    ]
    count = int(next(iter(outcomes.values())).measures["count"])
    show(table(rows, title=f"{count} test digits"), *_drawings(uncertain))
    show(styled("bold", page, ": open it in a browser to see all results"))
    note(f"the networks are in {out}; use one: {_command()} predict {out / (PREFIX + uncertain['method'])} FILE")


def _command() -> str:
    """Return the command that starts this program, even if its environment is not activated."""
    program = Path(sys.argv[0])
    return str(program) if program.name == "pocketbayes" and shutil.which("pocketbayes") is None else "pocketbayes"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, since more slow such small networks down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _coded(outcome: Outcome) -> Outcome:
    """Compress an ensemble to fewer bytes than one member takes in float32."""
    start, recipe = time.monotonic(), outcome.recipe
    train, val = (recipe.data.load(split) for split in ("train", "val"))
    networks = members(outcome.net)
    one = 4 * networks[0].census().values
    found = compress(
        outcome.net, train, val, max_bytes=one - 1, count=len(networks), samples=recipe.samples, progress=False
    )
    folder = outcome.folder.with_name(f"{outcome.folder.name}-coded")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(outcome.folder / RECIPE_FILE, folder / RECIPE_FILE)
    found.save(folder / MODEL_FILE)
    measures = evaluate(found.net, recipe.data.load(outcome.split), samples=recipe.samples)  # type: ignore[arg-type]
    return replace(outcome, folder=folder, net=found.net, measures=measures, seconds=time.monotonic() - start)


def _evaluate(outcome: Outcome) -> None:
    """Run a small evaluation for the report."""
    from pocketbayes.recipes.experiment import about

    recipe, test = outcome.recipe, outcome.recipe.data.load(outcome.split)  # type: ignore[arg-type]
    evaluate_suite(
        outcome.net,
        test,
        ood=_photographs(test.info),
        shift=("rotation", "noise"),
        samples=recipe.samples,
        out=outcome.folder / EVALUATION_FILE,
        overwrite=True,
        about=about(outcome.folder, outcome.net, outcome.bytes, recipe.data, outcome.split, recipe),
        progress="bar",
    )


def _photographs(info: Info) -> dict[str, tuple[Tensor, Tensor]]:
    """Return grey patches of scikit-learn's two photographs in the size of the digits."""
    from sklearn.datasets import load_sample_images

    if importlib.util.find_spec("PIL") is None or info.mean is None or info.std is None:
        return {}
    _, height, width = info.input_shape
    grey = torch.stack([torch.tensor(image) for image in load_sample_images().images]).float().mean(3) / 255
    coarse = torch.nn.functional.avg_pool2d(grey[:, None], 4)
    pieces = coarse.unfold(2, height, height).unfold(3, width, width).reshape(-1, 1, height, width)
    return {"photographs": ((pieces - info.mean[0]) / info.std[0], torch.zeros(len(pieces), dtype=torch.long))}


def _most_uncertain(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return the test digits with the largest total uncertainty under the random network with the lowest NLL."""
    random = {name: o for name, o in outcomes.items() if o.net.census().random} or outcomes
    name = min(random, key=lambda key: random[key].measures["nll"])
    outcome = random[name]
    test = outcome.recipe.data.load("test")
    x, y = test.__getitems__(range(len(test)))
    prediction = predict(outcome.net, x, outcome.recipe.samples)
    assert prediction.probs is not None
    digits = []
    for index in prediction.entropy.topk(DRAWN).indices.tolist():
        probs = prediction.probs[index]
        digits.append(
            {
                "index": index,
                "label": int(y[index]),
                "guesses": {int(label): float(probs[label]) for label in probs.topk(3).indices},
                "entropy": float(prediction.entropy[index]),
                "epistemic": float(prediction.epistemic[index]),
                "pixels": _pixels(x[index], test.info),
            }
        )
    return {"method": name, "digits": digits}


def _pixels(x: Any, info: Any) -> list[list[float]]:
    """Return an image of one channel as grey values from 0 to 1, rows first."""
    return [[round(value, 3) for value in row] for row in (x[0] * info.std[0] + info.mean[0]).tolist()]


def _drawings(uncertain: dict[str, Any]) -> list[Any]:
    from rich.columns import Columns
    from rich.panel import Panel

    panels = [
        Panel(_drawing(digit), title=f"a {digit['label']}", subtitle=f"{digit['entropy']:.2f} nats", padding=(0, 1))
        for digit in uncertain["digits"]
    ]
    return [f"The test digits that {uncertain['method']} is least certain about:", Columns(panels)]


def _drawing(digit: dict[str, Any]) -> str:
    top = len(SHADES) - 1
    rows = ["".join(2 * SHADES[round(min(max(value, 0.0), 1.0) * top)] for value in row) for row in digit["pixels"]]
    guesses = [f"{label} {100 * p:3.0f} % {bar(p, 9)}" for label, p in digit["guesses"].items()]
    return "\n".join([*rows, "", *guesses])
