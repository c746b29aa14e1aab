"""Training and measuring a recipe in a run folder."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from pocketbayes import data
from pocketbayes.base import atomic
from pocketbayes.base.errors import NoSplitError, UserError
from pocketbayes.base.process_group import ProcessGroup, is_first
from pocketbayes.base.progress import Show
from pocketbayes.base.run_folder import CHECKPOINT_FILE, EVALUATION_FILE, METRICS_FILE, MODEL_FILE, RECIPE_FILE, hold
from pocketbayes.inference.evaluation import evaluate
from pocketbayes.inference.suite.store import values_file
from pocketbayes.likelihoods import Likelihood
from pocketbayes.methods import Method, VariationalMethod
from pocketbayes.methods.ensemble import Ensemble
from pocketbayes.network import Net
from pocketbayes.posteriors import Census
from pocketbayes.recipes import DataPart, Recipe, read
from pocketbayes.training import checkpoint
from pocketbayes.training.beta_search import search_beta
from pocketbayes.training.fitting import fit
from pocketbayes.training.settings import Training, begun_otherwise

RUN_FILES = (RECIPE_FILE, METRICS_FILE, CHECKPOINT_FILE, MODEL_FILE)


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    recipe: Recipe
    folder: Path
    net: Net
    split: str
    examples: int
    measures: dict[str, float]
    seconds: float

    @property
    def bytes(self) -> int:
        """The size of the network's file."""
        return (self.folder / MODEL_FILE).stat().st_size

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "recipe": self.recipe.to_tree(),
            "folder": str(self.folder),
            "network": str(self.folder / MODEL_FILE),
            "split": self.split,
            "examples": self.examples,
            "samples": self.recipe.samples,
            "measures": self.measures,
            "census": census_json(self.net.census()),
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
        }


def census_json(census: Census) -> dict[str, Any]:
    """Return a census as JSON values, with the total number of stored values."""
    return {**asdict(census), "stored": dict(census.stored), "values": census.values}


def about(
    network: Path, net: Net, size: int, tested: DataPart, split: str, recipe: Recipe | None = None
) -> dict[str, Any]:
    """Return the description of a network for an evaluation."""
    made = {} if recipe is None else {"method": recipe.method.name, "model": recipe.model.name}
    return {
        "network": str(network),
        **made,
        "data": {"name": tested.name, **tested.settings},
        "split": split,
        "census": census_json(net.census()),
        "bytes": size,
        **({} if recipe is None else {"recipe": recipe.to_tree()}),
    }


def run(
    recipe: Recipe,
    out: str | Path,
    data_dir: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    measured: bool = True,
    workers: int = 0,
    ray: str | None = None,
    progress: Show = None,
) -> Outcome:
    """Train a recipe and measure the network on its test split.

    Errors in the recipe are found before the folder is touched, and a run that fails before its first checkpoint leaves
    no files.

    The folder `out` gets `recipe.yaml`, `metrics.jsonl`, the checkpoint and `model.pocket`. The other arguments are the
    options of `pocketbayes train`; `measured=False` skips the measurement.
    """
    folder = Path(out)
    if resume and recipe.search is not None and (folder / RECIPE_FILE).is_file():  # it has the search's result
        recipe = recipe.model_copy(update={"search": None, "method": read(folder).method})
    _on_workers(recipe.method.make(), workers, ray)  # reject it before the folder is touched
    if is_first():
        _check_folder(folder, recipe, resume, overwrite)
    train = recipe.data.load("train", data_dir)
    val = recipe.data.load("val", data_dir) if recipe.data.settings.get("val_fraction", 1) else None
    test, split = _measured(recipe, data_dir, val)
    torch.manual_seed(recipe.seed)
    likelihood = None if recipe.likelihood is None else recipe.likelihood.make(train)
    model = recipe.model.build(train, likelihood, data_dir)
    recipe = recipe.resolved(model)
    start = time.monotonic()
    if recipe.search is not None:
        recipe = _searched(recipe, model, train, val, likelihood)
    with contextlib.ExitStack() as stack:
        if is_first():
            stack.enter_context(hold(folder))
            _check_folder(folder, recipe, resume, overwrite)  # again: another run may have finished here
        stack.enter_context(_clean_unless_begun(folder))
        if is_first():
            _begin(folder, recipe, overwrite)
        net = fit(
            _on_workers(recipe.method.make(), workers, ray),
            model,
            train,
            val=val,
            seed=recipe.seed,
            out=folder,
            resume=resume,
            likelihood=likelihood,
            progress=progress,
            **recipe.training,
        )
    seconds = time.monotonic() - start
    measures, team = {}, ProcessGroup.current()
    if measured:
        with team.guarded("the network is saved; measure it with: pocketbayes evaluate"):
            measures = evaluate(net, test, samples=recipe.samples, team=team, progress=progress)
    return Outcome(recipe, folder, net, split, len(test), measures, seconds)


def _on_workers(method: Method, workers: int, ray: str | None) -> Method:
    """Return the method with workers for its members."""
    if not workers and ray is None:
        return method
    if not isinstance(method, Ensemble):
        raise UserError("--workers trains the members of an ensemble in parallel: choose --method ensemble")
    return replace(method, workers=workers or method.members, address=ray)


def _searched(
    recipe: Recipe, model: nn.Module, train: data.Dataset, val: data.Dataset | None, likelihood: Likelihood | None
) -> Recipe:
    """Return the recipe with the search replaced by the weight of the KL that it finds."""
    assert recipe.search is not None
    method = recipe.method.make()
    if not isinstance(method, VariationalMethod):
        raise UserError(f"search: method {recipe.method.name!r} has no KL weight to search for")
    if val is None:
        raise UserError("search: choosing the KL weight needs validation data: set data.val_fraction above 0")
    settings = {name: value for name, value in recipe.training.items() if name != "epochs"}
    found = search_beta(
        method, model, train, val, seed=recipe.seed, likelihood=likelihood, progress=False,
        **recipe.search.model_dump(), **settings,
    )  # fmt: skip
    chosen = type(recipe.method)(**{**dict(recipe.method), "beta": found.beta})
    return recipe.model_copy(update={"search": None, "method": chosen})


def _check_folder(folder: Path, recipe: Recipe, resume: bool, overwrite: bool) -> None:
    """Reject a folder with another run, or with a finished one unless it may be replaced."""
    found = [name for name in RUN_FILES if (folder / name).exists()]
    if resume:
        begun = (folder / RECIPE_FILE).is_file() and not (folder / MODEL_FILE).exists()  # killed early
        if not checkpoint.has_begun(folder) and not begun:
            raise UserError(f"nothing to resume: {folder} has no checkpoint; start the run without --resume")
        before = read(folder)
        for part in ("method", "data", "likelihood", "seed"):
            if getattr(before, part) != getattr(recipe, part):
                trees = (r.to_tree().get(part, "the default") for r in (before, recipe))
                raise begun_otherwise(folder, part, *trees)
        if before.model.name != recipe.model.name:
            raise begun_otherwise(folder, "model", before.model.name, recipe.model.name)
        begun_with = Training(**before.training)
        Training(**recipe.training).check_resumes(begun_with.deciding(), begun_with.epochs, folder)
    elif found and not overwrite:
        raise UserError(f"{folder} already contains a run ({found[0]}): add --resume or --overwrite, or another --out")


def _begin(folder: Path, recipe: Recipe, overwrite: bool) -> None:
    if overwrite:
        evaluations = list(folder.glob(f"*{EVALUATION_FILE}"))  # one for each propagation
        old = [folder / name for name in RUN_FILES] + checkpoint.files(folder) + evaluations
        for path in {*old, *map(values_file, evaluations)}:
            path.unlink(missing_ok=True)
    atomic.remove_leftovers(folder / RECIPE_FILE)
    atomic.write_atomically(folder / RECIPE_FILE, recipe.to_yaml())


def _measured(
    recipe: Recipe, data_dir: str | Path | None, val: data.Dataset | None
) -> tuple[data.Dataset, Literal["test", "val"]]:
    """Return the test split, or the validation split if there is no test split."""
    try:
        return recipe.data.load("test", data_dir), "test"
    except NoSplitError:
        if val is None:
            raise
        return val, "val"


@contextlib.contextmanager
def _clean_unless_begun(folder: Path) -> Any:
    """Remove written files if the block fails before the first checkpoint."""
    try:
        yield
    except BaseException:
        if is_first() and not checkpoint.has_begun(folder):
            with contextlib.suppress(OSError):
                for name in RUN_FILES:
                    (folder / name).unlink(missing_ok=True)
        raise
