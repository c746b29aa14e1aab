"""`pocketbayes demo`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli.options import Json
from pocketbayes.cli.output import note, show, show_json

if TYPE_CHECKING:
    from pocketbayes.experiment import Outcome

PREFIX = "digits-"
"""Every recipe that begins so is part of the demo: a new method joins it by shipping one."""
SHADES = " ░▒▓█"
DRAWN = 3


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for the runs.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Train each method on the embedded digits, compare them, and show what they are least sure of. No downloads."""
    from pocketbayes import config
    from pocketbayes.experiment import run
    from pocketbayes.methods import METHODS
    from pocketbayes.report.table import shown, table

    recipes = {name: config.read(name) for name in config.names() if name.startswith(PREFIX)}
    order = list(METHODS)
    outcomes: dict[str, Outcome] = {}
    with _one_thread():
        for name, recipe in sorted(recipes.items(), key=lambda item: order.index(item[1].method.name)):
            note(f"{name}: {recipe.about}")
            outcomes[name.removeprefix(PREFIX)] = run(recipe, out / name, overwrite=True, progress="bar")
        uncertain = _most_uncertain(outcomes)
    if json:
        results = {name: outcome.to_json() for name, outcome in outcomes.items()}
        show_json({"folder": str(out), "results": results, "most_uncertain": uncertain})
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
    note(f"the networks are in {out}; ask one: pocketbayes predict {out / (PREFIX + uncertain['method'])} FILE")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small are done before a second thread has woken up, and on a busy machine it may take long."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _most_uncertain(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The test digits with the largest total uncertainty under the random network with the lowest NLL."""
    from pocketbayes.predict import predict

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
    """An image of one channel as grey values from 0 to 1, rows first."""
    return [[round(value, 3) for value in row] for row in (x[0] * info.std[0] + info.mean[0]).tolist()]


def _drawings(uncertain: dict[str, Any]) -> list[Any]:
    from rich.columns import Columns
    from rich.panel import Panel

    panels = [
        Panel(_drawing(digit), title=f"a {digit['label']}", subtitle=f"{digit['entropy']:.2f} nats", padding=(0, 1))
        for digit in uncertain["digits"]
    ]
    return [f"The test digits that {uncertain['method']} is least sure of, and its guesses:", Columns(panels)]


def _drawing(digit: dict[str, Any]) -> str:
    from pocketbayes.report.table import bar

    top = len(SHADES) - 1
    rows = ["".join(2 * SHADES[round(min(max(value, 0.0), 1.0) * top)] for value in row) for row in digit["pixels"]]
    guesses = [f"{label} {100 * p:3.0f} % {bar(p, 9)}" for label, p in digit["guesses"].items()]
    return "\n".join([*rows, "", *guesses])
