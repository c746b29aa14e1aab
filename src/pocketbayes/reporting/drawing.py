"""The report's figures as files for papers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbayes.base.errors import UserError
from pocketbayes.reporting.figures import evaluation, save, tradeoff, training
from pocketbayes.reporting.figures.plane import PlaneView, plane
from pocketbayes.reporting.figures.style import FORMATS
from pocketbayes.reporting.leaderboard import inside, values_of
from pocketbayes.reporting.runs import RunFolder
from pocketbayes.reporting.weights import posterior_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawing = tuple[str, Callable[[], "Figure"]]


def draw(runs: Sequence[RunFolder], folder: Path) -> list[Path]:
    """Write all figures for which the runs have data as PNG, SVG and PDF, and return the files."""
    written = []
    for name, make in _drawings(runs):
        try:
            figure = make()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UserError(f"the figure {name} cannot be drawn from these evaluations: {error!r}") from error
        written += [save(figure, folder / f"{name}{ending}") for ending in FORMATS]
    return written


def _drawings(runs: Sequence[RunFolder]) -> Iterator[Drawing]:
    def known(*path: str) -> dict[str, Any]:
        """Return the entries of evaluations at a path, by name of the run."""
        return {run.name: found for run in runs if (found := inside(run.evaluation, *path))}

    rows = {run.name: values_of(run) for run in runs}
    for key, label in (("bytes", "bytes"), ("latency", "seconds for one answer")):
        points = {name: (row[key], row["nll"]) for name, row in rows.items() if key in row and "nll" in row}
        if points:
            yield f"pareto-{key}", partial(tradeoff.pareto, points, label)
    if found := known("reliability"):
        yield "reliability", partial(evaluation.reliability, found)
    if found := known("risk_coverage"):
        yield "risk-coverage", partial(evaluation.risk_coverage, found)
    for name, boxes in known("box").items():
        yield f"confidence-{_file(name)}", partial(evaluation.confidence_boxes, boxes, name)
    for other in dict.fromkeys(name for sets in known("ood").values() for name in sets):
        if found := known("ood", other, "histogram"):
            own = next((run.data for run in runs if run.data), None) or "own data"
            yield f"ood-{_file(other)}", partial(evaluation.ood_histograms, found, own, other)
    for key, x in (("rotation", "degrees"), ("noise", "db")):
        if found := known("shift", key):
            yield key, partial(evaluation.shift_curves, found, x)
    if found := known("shift", "corruptions_mean", "by severity"):
        yield "corruptions", partial(evaluation.shift_curves, found)
    for name in dict.fromkeys(name for sets in known("shift", "corruptions").values() for name in sets):
        yield f"corruption-{_file(name)}", partial(evaluation.shift_curves, known("shift", "corruptions", name))
    epochs = {run.name: run.epochs for run in runs if run.epochs}
    if epochs:
        yield "training", partial(training.training_curves, epochs)
    for run in runs:
        if run.weights.get("layers"):
            yield f"layers-{_file(run.name)}", partial(training.layer_fractions, run.weights["layers"], run.name)
        if "sigma" in run.weights:
            sigma = run.weights["sigma"]
            yield (
                f"sigma-{_file(run.name)}",
                partial(training.sigma_map, sigma["picture"], f"{run.name}: {sigma['name']}"),
            )
        if "plane" in run.weights and run.file is not None:
            yield f"plane-{_file(run.name)}", partial(_plane, run.file, run.name)


def _plane(file: Path, name: str) -> Figure:
    shared = posterior_of(file).plane()
    assert shared is not None
    return plane({name: PlaneView.of(shared)})


def _file(name: str) -> str:
    """Return a name that is valid on every file system."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name) or "unnamed"
