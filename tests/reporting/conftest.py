"""Two tiny runs with everything that a report can show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbayes import recipes as config
from pocketbayes.base.run_folder import EVALUATION_FILE
from pocketbayes.inference.suite import evaluate_suite
from pocketbayes.recipes.experiment import run

RECIPES = {
    "shared": {"method": {"name": "2dgbnn", "k": 6, "n_min": 3, "pretrain_epochs": 2, "meanfield_epochs": 1}},
    "sparse": {"method": {"name": "ssvi", "density": 0.25, "distribution": "uniform", "std_init": 0.05}},
}
MEASURES = {"accuracy": 0.9, "nll": 0.4, "ece": 0.05, "brier": 0.2, "entropy": 0.3, "entropy_right": 0.2}


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """Return a folder with two evaluated runs on the embedded digits; corruption results are made up."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    for name, part in RECIPES.items():
        tree = {"model": {"name": "mlp", "hidden": [8]}, "data": {"name": "digits", "val_fraction": 0.2}, "samples": 3}
        recipe = config.check({**tree, **part, "training": {"epochs": 2, "batch_size": 128}})
        outcome = run(recipe, folder / name, progress=False)
        test = recipe.data.load("test")
        test = test.take(torch.arange(60))
        evaluate_suite(
            outcome.net,
            test,
            ood={"noise": (torch.randn(50, 1, 8, 8), torch.zeros(50, dtype=torch.long))},
            shift=("noise",),
            samples=3,
            out=folder / name / EVALUATION_FILE,
            about={"method": recipe.method.name, "split": "test", "data": {"name": "digits"}},
            progress=False,
        )
        rows = [{"severity": level, **MEASURES, "entropy_wrong": 0.1 * level} for level in range(1, 6)]
        _change(
            folder / name,
            lambda document, rows=rows: document["shift"].update(
                corruptions={"fog": rows, "gaussian_noise": rows}, corruptions_mean={"of 15": MEASURES}
            ),
        )
    return folder


@pytest.fixture(scope="session")
def change() -> Callable[[Path, Any], None]:
    """Edit the evaluation in a run's folder."""
    return _change


def _change(run_folder: Path, edit: Any) -> None:
    file = run_folder / EVALUATION_FILE
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))
