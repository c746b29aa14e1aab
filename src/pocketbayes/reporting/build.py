"""The report: read runs, measure the cost of a prediction, and write the page and its figures."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import platform
import re
import statistics
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from pocketbayes.base import atomic
from pocketbayes.base.errors import UserError
from pocketbayes.base.plain import finite
from pocketbayes.files import network_file as artifact
from pocketbayes.inference.metrics import flops
from pocketbayes.inference.prediction import predict
from pocketbayes.inference.suite import compare, over_seeds, read_values
from pocketbayes.network import Net, members
from pocketbayes.reporting.drawing import draw
from pocketbayes.reporting.leaderboard import leaderboard
from pocketbayes.reporting.runs import Paths, RunFolder, read_runs
from pocketbayes.reporting.weights import picture_json, weights_of

LATENCY_CALLS, LATENCY_SECONDS = 9, 0.5
"""Number of calls for the median latency, and the seconds after which fewer suffice."""
SCRIPTS = ("elements", "charts", "data", "overview", "calibration", "shift", "weights", "plane", "sections")
"""Scripts in the order in which they run; page.js comes last."""


def report(runs: Paths, out: str | Path = "report.html", figures: str | Path | None = None) -> Path:
    """Write one self-contained HTML page that compares runs, and return its path.

    Recipe, training curves, weights and costs come from the runs, measures from `pocketbayes evaluate`; missing parts
    are omitted.

    Args:
        runs: Run folders, folders of run folders, .pocket files, or evaluations (.json).
        out: The page; it works offline, in light and dark mode, on a phone and on paper.
        figures: A folder for the figures as PNG, SVG and PDF files.
    """
    return write(runs, out, figures).page


@dataclass(frozen=True)
class Written:
    """The files of a report and its runs."""

    page: Path
    figures: list[Path]
    runs: list[RunFolder]


def write(runs: Paths, out: str | Path, figures: str | Path | None = None) -> Written:
    """Write a report and return its files and runs."""
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"the name of a report must end in .html, not {out.name!r}")
    found = gather(runs)
    page = render(document(found), title=f"pocketbayes: {', '.join(run.name for run in found)}")
    drawn = [] if figures is None else draw(found, Path(figures))  # first, since its folder may not be writable
    atomic.write_atomically(out, page)
    return Written(out, drawn, found)


def gather(paths: Paths) -> list[RunFolder]:
    """Read the runs and measure the cost of their predictions."""
    found = read_runs(paths)
    for run in found:
        if run.file is not None:
            _look_inside(run, run.file)
    return found


def document(runs: list[RunFolder]) -> dict[str, Any]:
    """Return the contents of the page as JSON values."""
    from pocketbayes import __version__

    return {
        "leaderboard": leaderboard(runs),
        **tests_of(runs),
        "runs": [_run_json(run) for run in runs],
        "versions": {
            "pocketbayes": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {_threads()}",
            "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        },
    }


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread" + ("s" if count > 1 else "")


def tests_of(runs: list[RunFolder]) -> dict[str, Any]:
    """Return paired tests between runs and means over seeds, for runs with suitable evaluations."""
    measured = [
        place for place, run in enumerate(runs) if run.measures and isinstance(run.evaluation.get("data"), dict)
    ]
    documents = [{**runs[place].evaluation, "recipe": runs[place].recipe or None} for place in measured]
    values = [read_values(runs[place].evaluation_file) for place in measured]
    try:
        pairs = compare(documents, values)
        groups, anovas = over_seeds(documents)
    except (UserError, ValueError, TypeError, RuntimeError) as error:  # values written by another program
        for place in measured:
            runs[place].problems.append(f"no tests between the runs: {error}")
        return {"pairs": [], "seeds": [], "anova": []}
    for pair in pairs:
        pair |= {key: None if pair[key] is None else measured[pair[key]] for key in ("first", "second", "better")}
    for group in groups:
        group["networks"] = [measured[place] for place in group["networks"]]
    return {"pairs": pairs, "seeds": groups, "anova": anovas}


def _look_inside(run: RunFolder, file: Path) -> None:
    try:
        run.weights = weights_of(file)
    except (UserError, KeyError, TypeError, ValueError, RuntimeError) as error:
        run.problems.append(f"the network cannot be read: {error}")
        return
    try:
        run.cost = cost_of(artifact.load(file), run.samples, run.evaluation.get("propagation"))
    except (UserError, RuntimeError, TypeError, ValueError) as error:
        run.problems.append(f"its cost cannot be measured: {error}")


def _run_json(run: RunFolder) -> dict[str, Any]:
    import yaml

    weights = dict(run.weights)
    if "sigma" in weights:
        weights["sigma"] = picture_json(weights["sigma"])
    return {
        "name": run.name,
        "path": str(run.path),
        "method": run.method,
        "data": run.data,
        "recipe": yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True) if run.recipe else None,
        "about": str(run.recipe.get("about") or ""),
        "epochs": run.epochs,
        "evaluation": run.evaluation,
        "weights": weights,
        "cost": run.cost,
        "problems": run.problems,
    }


def cost_of(net: Net, samples: int, propagation: str | None = None) -> dict[str, Any]:
    """Measure FLOPs and seconds of one prediction on this machine; empty if the input shape is unknown."""
    info = members(net)[0].info
    if info is None:
        return {}
    x = torch.zeros(1, *info.input_shape)
    predict(net, x, 1, propagation)  # the first call makes the plan
    seconds: list[float] = []
    while len(seconds) < LATENCY_CALLS and sum(seconds) < LATENCY_SECONDS:
        start = time.perf_counter()
        predict(net, x, samples, propagation)
        seconds.append(time.perf_counter() - start)
    count = flops(predict, net, x, samples, propagation)
    return {"flops": count, "latency": statistics.median(seconds), "samples": samples}


def render(document: dict[str, Any], title: str) -> str:
    """Render the page; the data are in a script tag that is never executed, and only the page's script may run."""
    script = "\n".join(_read(*path) for path in [*(("scripts", f"{name}.js") for name in SCRIPTS), ("page.js",)])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
        "style": _read("page.css"),
        "data": as_data(document),
        "script": script,
    }
    # Substitute in one pass, so that inserted text is never expanded.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def as_data(value: Any) -> str:
    """Return JSON that cannot close its HTML tag, with null for NaN and infinity."""
    text = json.dumps(finite(value, digits=7), allow_nan=False, separators=(",", ":"), default=str)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(*path: str) -> str:
    return resources.files(__package__).joinpath(*path).read_text(encoding="utf-8")
