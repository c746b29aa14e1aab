"""All built-in recipes train: two steps of each stage, on generated data of the right shape."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes import data
from pocketbayes import recipes as config
from pocketbayes.data.dataset import Arrays
from pocketbayes.data.vision import IMAGE_SETS
from pocketbayes.methods import Method, Stage
from pocketbayes.recipes.experiment import run

BATCH, STEPS = 4, 2
SMALL_ONES = [name for name in config.names() if name.startswith("digits-")]
REGRESSIONS = {"uci": 6, "toy-cubic": 1}
"""Number of features of each data set."""
PBN_RATES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)


def made_up(name: str, split: str, _: Any = None, **options: Any) -> data.Dataset:
    """Return eight rows described like the data set of this name, with smaller images."""
    generator = torch.Generator().manual_seed(0)
    rows = BATCH * STEPS
    if name in REGRESSIONS:
        x = torch.randn(rows, REGRESSIONS[name], generator=generator)
        return Arrays(x, x[:, :1] ** 3, data.Info(name, "regression", None, None, (REGRESSIONS[name],)))
    sides = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "imagenet": (3, 64, 64), "cityscapes": (3, 32, 64)}
    shape = sides.get(name, (3, 32, 32))
    if name == "imagenet":
        classes = 1000
    elif name == "cityscapes":
        classes = 20 if options.get("void") == "class" else 19
    else:
        classes = 11 if name == "masks" else len(IMAGE_SETS[name].class_names)
    segmented = name in ("cityscapes", "masks")
    x = torch.randn(rows, *shape, generator=generator)
    y = torch.randint(0, classes, (rows, *shape[1:]) if segmented else (rows,), generator=generator)
    task = "segmentation" if segmented else "classification"
    return Arrays(x, y, data.Info(name, task, classes, None, shape))  # type: ignore[arg-type]


def shortened(stages: Sequence[Stage]) -> list[Stage]:
    """Return the recipe with one epoch per stage and small batches."""
    return [
        replace(
            stage,
            epochs=1 if stage.epochs is None else min(stage.epochs, 1),
            fixed={key: value for key, value in stage.fixed.items() if key not in ("epochs", "batch_size")},
        )
        for stage in stages
    ]


def train_briefly(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *changes: str) -> pb.Network:
    recipe = config.read(name, [*changes, "training.epochs=1", f"training.batch_size={BATCH}", "training.workers=0"])
    kept = {key: value for key, value in dict(recipe.model).items() if key != "weights"}
    recipe = recipe.model_copy(update={"model": config.parts.ModelPart(**kept), "samples": 1})
    stages: list[str] = []

    def short_stages(method: Method, model: nn.Module) -> list[Stage]:
        found = shortened(real_stages(method, model))
        stages.extend(stage.name for stage in found if stage.epochs)
        return found

    real_stages = type(recipe.method.make()).stages
    monkeypatch.setattr(type(recipe.method.make()), "stages", short_stages)
    monkeypatch.setattr(data, "load", made_up)
    outcome = run(recipe, folder, progress=False)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [row["stage"] for row in rows if "loss" in row]
    assert trained == stages
    assert all(math.isfinite(row["loss"]) for row in rows if "loss" in row)
    assert outcome.measures["count"] > 0
    return outcome.net  # type: ignore[return-value]


def by_weight(name: str) -> Any:
    """Return a recipe's marks: large networks are slow on a CPU."""
    heavy = any(word in name for word in ("resnet18-2dgbnn", "resnet18-vdp", "resnet50", "resnet101", "wrn28", "vit-"))
    return pytest.param(name, marks=pytest.mark.slow) if heavy else name


@pytest.mark.parametrize("name", [by_weight(name) for name in config.names() if name not in SMALL_ONES])
def test_recipes_run_two_steps_of_every_stage(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = ["method.k=16"] if name.endswith("-2dgbnn") else []  # thousands of Gaussians are for the plane's tests
    train_briefly(name, tmp_path / "run", monkeypatch, *fewer)


@pytest.mark.parametrize("name", ["cifar10-resnet-small-pbn", "svhn-resnet-small-pbn"])
@pytest.mark.parametrize("rate", PBN_RATES)
def test_recipe_resnet_runs_at_every_rate_of_the_paper(
    name: str, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = train_briefly(name, tmp_path / "run", monkeypatch, f"method.rate={rate}", "method.train_samples=1")
    assert net.posterior.noise_size == round(rate * net.layout.size)


def test_recipe_for_imagenet_measures_top_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", made_up)
    net = pb.bayesianize(pb.models.build("resnet18", classes=1000), "map")
    assert "top5" in pb.evaluate(net, data.load("imagenet", "test"), samples=1)


def test_run_is_evaluated_on_validation_data_without_test_data(tmp_path: Path) -> None:
    """Data without a test split are measured on the validation split; a test file that is damaged is an error."""
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    np.savez(tmp_path / "all.npz", x=x, y=y)
    tree = {"method": "map", "model": "mlp", "training": {"epochs": 1}}
    part = {"name": "npz", "path": str(tmp_path / "all.npz"), "test_fraction": 0.0, "val_fraction": 0.2}
    outcome = run(config.check({**tree, "data": part}), tmp_path / "run", progress=False)
    assert outcome.split == "val"

    load = data.load

    @functools.wraps(load)
    def damaged(name: str, split: str, *args: Any, **options: Any) -> Any:
        if split == "test":
            raise pb.UserError("test.npz: not a readable file")
        return load(name, split, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", damaged)
        with pytest.raises(pb.UserError, match="not a readable"):
            run(config.check({**tree, "data": part}), tmp_path / "again", progress=False)
