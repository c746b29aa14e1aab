"""Models of torchvision and timm, with our argument names and without implicit downloads."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.data.folders import require

LIBRARIES = {"torchvision": "torchvision.models", "timm": "timm"}
"""The module with each library's models."""
VALUES = frozenset({"weights", "weights_backbone", "pretrained"})
"""Arguments that load pretrained weights and may download them."""
USUAL_CHANNELS = 3
_THEIR_NAMES = {
    "torchvision": {"classes": "num_classes"},
    "timm": {"classes": "num_classes", "in_channels": "in_chans"},
}
OUR_NAMES = {library: tuple(names) for library, names in _THEIR_NAMES.items()}
"""The arguments that accept our names."""


def build_external(library: str, name: str, args: dict[str, Any]) -> nn.Module:
    """Build a model of `torchvision` or `timm`, which also takes `classes` (and for timm `in_channels`)."""
    if library not in LIBRARIES:
        raise UnknownNameError("model library", library, LIBRARIES)
    models = _models(library)
    if not has_model(library, name):
        close = difflib.get_close_matches(name, models.list_models(), n=5)  # timm's full list is too long to print
        raise UnknownNameError(f"{library} model", name, close or [f"those of {library}'s list_models()"])
    theirs = {_THEIR_NAMES[library].get(key, key): value for key, value in args.items()}
    if len(theirs) < len(args):
        raise UserError(f"{library}:{name}: one argument under two names, ours and {library}'s: {', '.join(args)}")
    model = _create(library, name, theirs)
    bare = {key: value for key, value in theirs.items() if key not in VALUES}
    if bare != theirs:
        _check_same_structure(f"{library}:{name}", model, _create(library, name, bare))
    return model


def recognise_timm(model: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """Return the name and arguments of a model that `timm.create_model` built, if they rebuild the same structure."""
    config = getattr(model, "pretrained_cfg", None)
    if not type(model).__module__.startswith("timm.models.") or not isinstance(config, Mapping):
        return None
    name, channels = config.get("architecture"), getattr(model, "in_chans", USUAL_CHANNELS)
    if name is None:
        return None
    args = {"classes": getattr(model, "num_classes", None)}
    if channels != USUAL_CHANNELS:
        args["in_channels"] = channels
    try:
        with torch.device("meta"):  # shapes without values
            bare = build_external("timm", name, args).train(model.training)
    except (UserError, RuntimeError, NotImplementedError, TypeError):
        return None
    return (name, args) if repr(bare) == repr(model) and _structure(bare) == _structure(model) else None


def has_model(library: str, name: str) -> bool:
    """Return whether the library is installed and knows the name."""
    if importlib.util.find_spec(library) is None:
        return False
    models = _models(library)
    return bool(models.is_model(name)) if library == "timm" else name in models.list_models()


def _models(library: str) -> ModuleType:
    return require(LIBRARIES[library])


def _create(library: str, name: str, args: dict[str, Any]) -> nn.Module:
    models = _models(library)
    create = models.create_model if library == "timm" else models.get_model
    # torchvision's detection and segmentation models download a backbone unless told not to.
    if library == "torchvision" and "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        args = {"weights_backbone": None, **args}
    try:
        model: nn.Module = create(name, **args)
    except UserError:
        raise
    except (TypeError, LookupError, ValueError, RuntimeError, ArithmeticError, AttributeError, AssertionError) as error:
        raise UserError(f"{library}:{name}: {type(error).__name__}: {error}") from error
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{library}:{name}: its pretrained weights could not be downloaded ({reason})") from error
    return model


def _check_same_structure(name: str, model: nn.Module, bare: nn.Module) -> None:
    """Reject a pretrained model that its arguments without the weights would not rebuild.

    A file stores the arguments without `weights`, so that loading it downloads nothing, but some of torchvision's
    weights switch on auxiliary heads or an input transform.
    """
    ours, theirs = _structure(model), _structure(bare)
    different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if different:
        way_out = "set by hand what the weights switch (aux_loss=, aux_logits=, transform_input=)"
        raise UserError(f"{name}: its weights change the model's structure, first at {different[0]!r}; {way_out}")


def _structure(model: nn.Module) -> dict[str, Any]:
    settings = {key: value for key, value in vars(model).items() if isinstance(value, bool | int | float | str)}
    return settings | {key: tensor.shape for key, tensor in model.state_dict().items()}
