"""What a study is: rows that share a model and data, what each row changes, and how all of them are measured."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.recipes import Recipe, check, override
from pocketbayes.recipes.files import parse_yaml


class Row(BaseModel):
    """One line of the table: a recipe of its own, or the network of another row answered in another way.

    Attributes:
        recipe: What differs from the study's base, as a tree.
        start: The row whose trained network this one's training starts from, in place of the recipe's model.
        of: The row whose network is used.
        propagation: How its randomness is carried through the network.
        samples: Passes per example; None for the study's.
        compress: Settings of `pb.compress`, by which the network is compressed before it is measured.
        calibrate: Whether the network is calibrated on the validation data before it is measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    recipe: dict[str, Any] = Field(default_factory=dict)
    start: str | None = None
    of: str | None = None
    propagation: str | None = None
    samples: int | None = Field(default=None, ge=1)
    compress: dict[str, Any] | None = None
    calibrate: bool = False


class Study(BaseModel):
    """A table, and all that is needed to make it.

    Attributes:
        about: A line for people.
        stands_for: The table or figure of a paper that it stands for, and in what it differs.
        minutes: About how long it takes on two cores, an estimate.
        base: The recipe that rows change.
        seeds: Every row is trained once for each.
        seeded: Places in the recipe that the seed is written to as well, such as the number of a data set's split.
        samples: Passes per example.
        test_images: How many of the test data, and of each of `ood`, are measured, chosen at random; None for all.
        ood: Data sets that are told from the test data.
        shift: As in `evaluate_suite`.
        shift_images: As in `evaluate_suite`.
        rows: By name, in the order of the table.
        quick: Changes to every recipe that make a version of minutes.
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
                raise UserError(f"row {name!r} is of {row.of!r}: it cannot have a recipe or a start too")
            if row.compress is not None and row.calibrate:
                raise UserError(f"row {name!r} is compressed or calibrated, not both: make two rows of it")
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
    """Return the base with changes; mappings of both are merged, one with another name replaces the base's."""
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
    """Return the studies that come with the package."""
    return sorted(_trees())


def read(name: str) -> Study:
    """Return a study by its name."""
    trees = _trees()
    if name not in trees:
        raise UnknownNameError("study", name, trees)
    try:
        return Study.model_validate(trees[name])
    except ValidationError as found:
        error = found.errors()[0]
        inner = error.get("ctx", {}).get("error")
        place = ".".join(str(part) for part in error["loc"])
        raise UserError(f"study {name}: {inner or place + ': ' + error['msg']}") from None


def _trees() -> dict[str, dict[str, Any]]:
    """Return every study as a tree. A file whose `each` names variants holds a study for each, NAME-VARIANT."""
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
