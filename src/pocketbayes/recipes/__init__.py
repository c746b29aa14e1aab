"""Recipes: all settings of a run in YAML, checked before anything is loaded or trained."""

from __future__ import annotations

from pocketbayes.recipes.files import names, network_file, override, read_tree
from pocketbayes.recipes.parts import DataPart, LikelihoodPart, MethodPart, ModelPart
from pocketbayes.recipes.recipe import Recipe, check, check_data, load_like, read

__all__ = [
    "DataPart",
    "LikelihoodPart",
    "MethodPart",
    "ModelPart",
    "Recipe",
    "check",
    "check_data",
    "load_like",
    "names",
    "network_file",
    "override",
    "read",
    "read_tree",
]
