"""The definition of a study: a base recipe, the changes of each row, and the measurements."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.recipes import Recipe, check, override
from pocketbayes.recipes.files import parse_yaml


class Row(BaseModel):
    """One row of the table: its own recipe, or another row's network with other prediction settings.

    Attributes:
        recipe: Changes to the study's base.
        start: The row whose trained network replaces the recipe's model as the start of training.
        of: The row whose network is used.
        propagation: The propagation of predictions.
        samples: Passes per example; None for the study's.
        members: The number of the ensemble's first members to keep; None for all.
        compress: Settings of `pb.compress`, applied before measuring.
        calibrate: Whether to calibrate the network on the validation data before measuring.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    recipe: dict[str, Any] = Field(default_factory=dict)
    start: str | None = None
    of: str | None = None
    propagation: str | None = None
    samples: int | None = Field(default=None, ge=1)
    members: int | None = Field(default=None, ge=1)
    compress: dict[str, Any] | None = None
    calibrate: bool = False


class Study(BaseModel):
    """A table with all settings needed to reproduce it.

    Attributes:
        about: A one-line description.
        stands_for: The corresponding table or figure of a paper, and the differences.
        minutes: Estimated time on two cores.
        base: The recipe that rows change.
        seeds: The seeds; every row is trained once per seed.
        seeded: Further keys of the recipe that are set to the seed, such as the number of a data set's split.
        samples: Passes per example.
        test_images: The number of randomly chosen test and `ood` images; None for all.
        ood: Out-of-distribution data sets.
        shift: As in `evaluate_suite`.
        shift_images: As in `evaluate_suite`.
        rows: The rows by name, in the order of the table.
        quick: Changes to every recipe for the short version.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    about: str
    stands_for: str
    minutes: float
    base: dict[str, Any]
    seeds: tuple[int, ...] = (0, 1, 2)
    seeded: tuple[str, ...] = ()
    samples: int = Field(default=30, ge=1)
    test_images: int | None = Field(default=None, ge=1)
    ood: tuple[str, ...] = ()
    shift: tuple[str, ...] = ()
    shift_images: int | None = Field(default=None, ge=1)
    rows: dict[str, Row]
    quick: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_rows(self) -> Study:
        trained = [name for name, row in self.rows.items() if row.of is None]
        for name, row in self.rows.items():
            if row.of is not None and row.of not in trained:
                raise UnknownNameError(f"row that {name!r} is of", row.of, trained)
            if row.of is not None and (row.recipe or row.start):
                raise UserError(f"row {name!r} uses the network of {row.of!r}: it cannot also have a recipe or a start")
            if row.compress is not None and row.calibrate:
                raise UserError(f"row {name!r} cannot be both compressed and calibrated: make two rows")
            before = trained[: trained.index(name)] if name in trained else []
            if row.start is not None and row.start not in before:
                raise UnknownNameError(f"row above {name!r} that it starts from", row.start, before)
            self.recipe(name, 0)
        return self

    def recipe(self, row: str, seed: int, quick: bool = False) -> Recipe:
        """Return the recipe that trains the network of a row."""
        source = self.rows[self.rows[row].of or row]
        tree = merged(self.base, source.recipe) | {"seed": seed, "samples": self.samples}
        for place in self.seeded:
            override(tree, f"{place}={seed}")
        for item in self.quick if quick else ():
            override(tree, item)
        return check(tree)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into the base; a mapping with another `name` replaces the base's."""
    tree = copy.deepcopy(dict(base))
    for key, value in changes.items():
        before = tree.get(key)
        if (
            isinstance(before, dict)
            and isinstance(value, Mapping)
            and value.get("name", before.get("name")) == before.get("name")
        ):
            tree[key] = merged(before, value)
        else:
            tree[key] = copy.deepcopy(value)
    return tree


def names() -> list[str]:
    """Return the names of the built-in studies."""
    return sorted(_trees())


def read(name: str) -> Study:
    """Read a study by name."""
    trees = _trees()
    check_choice("study", name, trees)
    try:
        return Study.model_validate(trees[name])
    except ValidationError as found:
        error = found.errors()[0]
        inner = error.get("ctx", {}).get("error")
        place = ".".join(str(part) for part in error["loc"])
        raise UserError(f"study {name}: {inner or place + ': ' + error['msg']}") from None


def _trees() -> dict[str, dict[str, Any]]:
    """Read every study; a file with variants in `each` defines a study NAME-VARIANT for each."""
    found: dict[str, dict[str, Any]] = {}
    for file in resources.files("pocketbayes.recipes.studies").iterdir():
        if not file.name.endswith(".yaml"):
            continue
        name = file.name.removesuffix(".yaml")
        tree = parse_yaml(file.read_text(encoding="utf-8"), f"study {name}")
        variants = tree.pop("each", None)
        found |= (
            {name: tree} if variants is None else {f"{name}-{key}": merged(tree, variants[key]) for key in variants}
        )
    return found
