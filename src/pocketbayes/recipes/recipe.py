"""The whole recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import nn

from pocketbayes import models
from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.data.dataset import Dataset, Pictures
from pocketbayes.data.description import match_preprocessing
from pocketbayes.data.registry import LOADERS
from pocketbayes.propagation.base import MAX_SAMPLES
from pocketbayes.recipes.files import override, read_tree
from pocketbayes.recipes.parts import DataPart, LikelihoodPart, MethodPart, ModelPart, check_types, types_of
from pocketbayes.training.beta_search import BETAS
from pocketbayes.training.settings import Training


class SearchPart(BaseModel):
    """The search for the weight of the KL before training (see `pocketbayes.search_beta`).

    Attributes:
        betas: The candidate weights.
        epochs: Epochs per round.
        keep: The fraction that continues to the next round.
        by: The criterion.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    by: Literal["nll", "calibrated_nll", "pruned_accuracy"] = "nll"
    betas: tuple[float, ...] = Field(default=BETAS, min_length=1)
    epochs: int = Field(default=1, ge=1)
    keep: float = Field(default=0.5, gt=0, lt=1)


class Recipe(BaseModel):
    """All settings of a run.

    Attributes:
        about: A one-line description.
        method: The method and its settings.
        model: The model and its arguments.
        data: The data set and its options.
        training: Settings of `pocketbayes.Training`; by default those of the method.
        likelihood: The noise model; None for the task's default.
        seed: Seed of initial weights, data order and all draws.
        samples: Passes per example in evaluation.
        search: A search for the weight of the KL, before training.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    about: str = ""
    method: MethodPart
    model: ModelPart
    data: DataPart
    training: dict[str, Any] = Field(default_factory=dict)
    likelihood: LikelihoodPart | None = None
    seed: int = Field(default=0, ge=0, lt=2**31)
    samples: int = Field(default=30, ge=1, le=MAX_SAMPLES)
    search: SearchPart | None = None

    @field_validator("seed", "samples", mode="before")
    @classmethod
    def _check_number(cls, value: Any) -> Any:
        if isinstance(value, bool):  # of which pydantic would make 0 or 1
            raise UserError(f"recipe: seed and samples are whole numbers, not {value}")
        return value

    @field_validator("training")
    @classmethod
    def _check_training(cls, value: dict[str, Any]) -> dict[str, Any]:
        types = types_of(Training)
        settings = check_types("training", value, types)
        for stage, own in settings.get("stages", {}).items():
            below = {name: kind for name, kind in types.items() if name != "stages"}
            settings["stages"] = {**settings["stages"], stage: check_types(f"training.stages.{stage}", own, below)}
        Training(**settings)
        return settings

    def resolved(self, model: nn.Module) -> Recipe:
        """Return the recipe with the model arguments that follow from the data."""
        spec = models.spec_of(model)
        if spec is None:
            return self
        return self.model_copy(update={"model": ModelPart(**{**spec.args, **dict(self.model)})})

    def to_tree(self) -> dict[str, Any]:
        """Return the recipe as JSON values in their shortest form."""
        tree = self.model_dump(mode="json", exclude_defaults=True)
        for key in ("method", "model", "data", "likelihood"):
            if key in tree and tree[key].keys() == {"name"}:
                tree[key] = tree[key]["name"]
        return tree

    def to_yaml(self) -> str:
        """Return the recipe as YAML."""
        return yaml.safe_dump(self.to_tree(), sort_keys=False)


def read(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by name, file or run folder, and apply overrides such as `training.lr=0.01`."""
    tree = read_tree(source)
    for item in overrides:
        override(tree, item)
    return check(tree)


def check(tree: Mapping[str, Any]) -> Recipe:
    """Build a recipe from JSON values, or report the first error as one line."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as found:
        raise _first_error(found) from None


def check_data(value: Any) -> DataPart:
    """Check the data section of a recipe."""
    try:
        return DataPart.model_validate(value)
    except ValidationError as found:
        raise _first_error(found) from None


def load_like(own: Dataset, name: str, data_dir: str | Path | None = None, **settings: Any) -> Dataset:
    """Load another data set's test split, or a whole npz file or image folder, prepared like a network's data."""
    try:
        part = check_data({"name": name, **settings})
        usual: dict[str, Any] = {}
        if part.name in ("npz", "imagefolder"):
            usual = {"test_fraction": 1.0, "labelled": False}
        if isinstance(own, Pictures) and "size" in types_of(LOADERS[part.name]):
            usual["size"] = own.info.input_shape[-1]
        other = check_data({**usual, **dict(part)}).load("test", data_dir)
        return other if settings.keys() & {"mean", "std"} else match_preprocessing(other, own.info)
    except UserError as error:
        raise UserError(f"cannot prepare these data like {own.info.name!r}: {error}") from None


def _first_error(found: ValidationError) -> UserError:
    errors = found.errors()
    error = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    inner = error.get("ctx", {}).get("error")
    if isinstance(inner, UserError):
        return inner
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        if place in {field.name for field in fields(Training)}:
            return UserError(f"unknown recipe key {place!r}: did you mean 'training.{place}'?")
        return UnknownNameError("recipe key", place, Recipe.model_fields)
    if error["type"] == "missing":
        option = f" or give --{place}" if place in ("method", "model", "data") else ""
        return UserError(f"the recipe has no {place!r}: add it to the file{option}")
    return UserError(f"recipe: {place}: {error['msg'][:1].lower()}{error['msg'][1:]}, not {error['input']!r}")
