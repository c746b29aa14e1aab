"""One row of a study with one seed: train or load its network, and measure it."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pocketbayes import data
from pocketbayes.base.errors import UserError
from pocketbayes.base.progress import Show
from pocketbayes.base.run_folder import EVALUATION_FILE, MODEL_FILE, RECIPE_FILE
from pocketbayes.files import network_file as artifact
from pocketbayes.inference.calibration import calibrate
from pocketbayes.inference.suite import evaluate_suite
from pocketbayes.methods import Deterministic
from pocketbayes.network import Mixture, Net, members
from pocketbayes.recipes import Recipe, check, load_like
from pocketbayes.recipes.experiment import run
from pocketbayes.recipes.studies.study import Study
from pocketbayes.ship.compression import compress
from pocketbayes.ship.compression.members import prefix
from pocketbayes.training.fitting import fit

KEPT = (
    *("accuracy", "nll", "calibrated_nll", "ece", "calibrated_ece", "brier", "epistemic_share"),
    *("miou", "rmse", "log_likelihood", "count"),
)
"""The measures of a row."""


@dataclass(frozen=True)
class RowMaker:
    """Trains and measures rows of a study."""

    study: Study
    quick: bool
    work: Path
    data_dir: str | Path | None
    progress: Show

    def figures(self, row: str, seed: int) -> dict[str, Any]:
        """Return the measurements of a row, with the seconds of training only if it was trained now."""
        folder, seconds = self._trained(self.study.rows[row].of or row, seed)
        recipe = self.study.recipe(row, seed, self.quick)
        path = self._prepared(row, recipe, folder)
        net = artifact.load(path)
        document = self._evaluation(row, net, recipe, folder)
        found: dict[str, Any] = {} if seconds is None else {"train_seconds": seconds}
        found |= {key: document["measures"][key] for key in KEPT if key in document["measures"]}
        for other, scores in document.get("ood", {}).items():
            found[f"auroc {other}"] = scores["scores"]["entropy"]["auroc"]
            found[f"scores {other}"] = {name: score["auroc"] for name, score in scores["scores"].items()}
        means = document.get("shift", {}).get("corruptions_mean")
        if means:
            found["corruption accuracy"] = means["of 15"]["accuracy"]
            found["by severity"] = means["by severity"]
        found["predict_seconds"] = document["seconds"]["test, of CPU"]
        found["bytes"] = path.stat().st_size
        found["values"] = net.census().values
        known = members(net)[0].health
        if known is not None:
            found["health"] = asdict(known)
        return found

    def _trained(self, row: str, seed: int) -> tuple[Path, float | None]:
        """Return the folder of a row's network, and the CPU seconds of its training if it was trained now."""
        recipe, start = self.study.recipe(row, seed, self.quick), self.study.rows[row].start
        before = None if start is None else self._trained(start, seed)[0]
        folder = self.work / _folder_name(row, recipe, before)
        if (folder / MODEL_FILE).is_file():
            return folder, None
        if before is not None:
            recipe = check({**recipe.to_tree(), "model": str(before)})
        begun = (folder / RECIPE_FILE).is_file()
        _warm()
        clock = time.process_time()
        run(recipe, folder, self.data_dir, resume=begun, measured=False, progress=self.progress)
        return folder, None if begun else round(time.process_time() - clock, 2)

    def _prepared(self, row: str, recipe: Recipe, folder: Path) -> Path:
        """Return the file that a row measures: the trained network, or one derived from it."""
        chosen = self.study.rows[row]
        if chosen.members is None and chosen.compress is None and not chosen.calibrate:
            return folder / MODEL_FILE
        path = folder / f"{_slug(row)}.pocket"
        if path.is_file():
            return path
        net = artifact.load(folder / MODEL_FILE)
        if chosen.members is not None:
            if not isinstance(net, Mixture) or len(net) < chosen.members:
                raise UserError(f"row {row!r}: {chosen.of or row!r} is not an ensemble of {chosen.members} or more")
            net = prefix(net, chosen.members)
        load = functools.partial(data.load, recipe.data.name, data_dir=self.data_dir, **recipe.data.settings)
        if chosen.compress is not None:
            compress(net, load(split="train"), load(split="val"), progress=self.progress, **chosen.compress).save(path)
            return path
        if chosen.calibrate:
            net = calibrate(net, load(split="val"), propagation=chosen.propagation)
        artifact.save(net, path)
        return path

    def _evaluation(self, row: str, net: Net, recipe: Recipe, folder: Path) -> dict[str, Any]:
        study, chosen, own = self.study, self.study.rows[row], recipe.data.settings
        images = own.get("subset") if self.quick else study.test_images or own.get("subset")
        few: dict[str, Any] = {} if images is None else {"subset": images}
        way = "" if chosen.of is None else f"{_slug(row)}."
        test = data.load(recipe.data.name, "test", self.data_dir, **{**own, **few})
        return evaluate_suite(
            net,
            test,
            ood={other: load_like(test, other, self.data_dir, **few) for other in study.ood},
            shift=() if self.quick else study.shift,
            shift_images=study.shift_images,
            samples=chosen.samples or study.samples,
            propagation=chosen.propagation,
            out=folder / f"{way}{EVALUATION_FILE}",
            progress=self.progress,
        )


def _folder_name(row: str, recipe: Recipe, start: Path | None) -> str:
    """Return a folder name from row, seed and a digest of all settings of the network."""
    text = json.dumps([recipe.to_tree(), start and start.name], sort_keys=True)
    return f"{_slug(row)}-{recipe.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _slug(row: str) -> str:
    """Return a row's name as a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", row.lower()).strip("-")


@functools.cache
def _warm() -> None:
    """Train briefly, so that measured times do not include first-time loading."""
    fit(Deterministic(), nn.Linear(1, 1), (torch.zeros(2, 1), torch.zeros(2, 1)), epochs=1, progress=False)
