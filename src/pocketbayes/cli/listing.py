"""`pocketbayes list`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from functools import partial
from typing import Annotated, Any

import typer

from pocketbayes import models
from pocketbayes.base.arguments import check_choice
from pocketbayes.cli.options import Json
from pocketbayes.cli.output import show, show_json, styled
from pocketbayes.data.registry import COMMON, LOADERS
from pocketbayes.methods import METHODS, Method
from pocketbayes.reporting.table import table
from pocketbayes.training.settings import Training


def list_(
    what: Annotated[str, typer.Argument(metavar="methods|models|data|recipes|training")],
    json: Json = False,
) -> None:
    """List methods, models, data sets, recipes, or the settings of training."""
    kinds = {"methods": _methods, "models": _models, "data": _data, "recipes": _recipes, "training": _training}
    check_choice("kind to list", what, kinds)
    rows = kinds[what]()
    if json:
        show_json({what: rows})
        return
    common = _common_settings() if what == "methods" else {}
    for row in rows if common else ():
        row["settings"] = {key: value for key, value in row["settings"].items() if key not in common}
    show(table([{key: _words(value) for key, value in row.items()} for row in rows]))
    if common:
        show(styled("dim", "all methods also take: ", _words(common)))
    if what == "data":
        show(styled("dim", "all data sets also take: ", ", ".join(COMMON)))
    if what == "models":
        show(styled("dim", "also any model of torchvision or timm: torchvision:NAME, timm:NAME"))


def _methods() -> list[dict[str, Any]]:
    rows = []
    for name, entry in METHODS.items():
        preset = entry.keywords if isinstance(entry, partial) else {}
        cls: Any = entry.func if isinstance(entry, partial) else entry
        settings = {f.name: preset.get(f.name, _plain(f.default)) for f in dataclasses.fields(cls)}
        rows.append(
            {"method": name, "class": cls.__name__, "about": _about(cls), "learns": cls.learns, "settings": settings}
        )
    return rows


def _common_settings() -> dict[str, Any]:
    return {f.name: _plain(f.default) for f in dataclasses.fields(Method)}


def _models() -> list[dict[str, Any]]:
    return [
        {"model": name, "about": _about(models.constructor(name)), "arguments": list(models.argument_names(name))}
        for name in models.names()
    ]


def _data() -> list[dict[str, Any]]:
    rows = []
    for name in sorted(LOADERS):
        loader = LOADERS[name]
        parameters = inspect.signature(loader).parameters.values()
        options = [
            f"{p.name} (required)" if p.default is p.empty else p.name for p in parameters if p.kind is p.KEYWORD_ONLY
        ]
        rows.append({"data": name, "options": options})
    return rows


def _recipes() -> list[dict[str, Any]]:
    from pocketbayes import recipes as config

    recipes = {name: config.read(name) for name in config.names()}
    return [
        {"recipe": name, "about": r.about, "method": r.method.name, "model": r.model.name, "data": r.data.name}
        for name, r in recipes.items()
    ]


def _training() -> list[dict[str, Any]]:
    told = (inspect.getdoc(Training) or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", told, re.MULTILINE)
    about = {name: " ".join(text.split()) for name, text in entries}
    return [
        {"setting": f.name, "default": _plain(f.default), "about": about[f.name]} for f in dataclasses.fields(Training)
    ]


def _about(made_by: Any) -> str:
    """Return the first line of a docstring."""
    told = made_by.func if isinstance(made_by, partial) else made_by
    return (inspect.getdoc(told) or "").partition("\n")[0]


def _plain(value: Any) -> Any:
    if value is dataclasses.MISSING:
        return None
    return value if value is None or isinstance(value, bool | int | float | str | list | tuple) else str(value)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)
