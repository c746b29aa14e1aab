"""The named sections of a recipe: method, model, data and likelihood, with checked settings."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from torch import nn

from pocketbayes import data, models
from pocketbayes.base.errors import UnknownNameError, UserError, first_line
from pocketbayes.data.registry import LOADERS, unknown
from pocketbayes.files import network_file as artifact
from pocketbayes.likelihoods import LIKELIHOODS, Likelihood
from pocketbayes.methods import METHODS, Method, make
from pocketbayes.posteriors.model_call import MODEL_ERRORS
from pocketbayes.recipes.files import network_file

CHECKPOINT_SUFFIXES = (".th", ".pt", ".pth", ".bin", ".ckpt", ".tar", ".safetensors")
"""Suffixes of `weights` that are files; otherwise it is a name of torchvision."""


class Named(BaseModel):
    """A name with its settings: `bbb`, or `{name: bbb, prior_std: 0.1}`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        given = {"name": value} if isinstance(value, str) else value
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            return given  # pydantic reports the error
        return cls.checked(given["name"], {key: value for key, value in given.items() if key != "name"})

    @classmethod
    def checked(cls, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the name and the settings converted to their types."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """All fields except the name."""
        return dict(self.model_extra or {})


class MethodPart(Named):
    """A registry name and the method's settings."""

    @classmethod
    def checked(cls, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Build the method to check its settings."""
        settings = check_types(f"method {name!r}", settings, types_of(METHODS[name]))
        make(name, **settings)
        return {"name": name, **settings}

    def make(self) -> Method:
        """Return the method with its settings."""
        return make(self.name, **self.settings)


class LikelihoodPart(Named):
    """The noise model."""

    @classmethod
    def checked(cls, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Build the likelihood to check its settings."""
        known = types_of(LIKELIHOODS[name].__init__, drop=("raw",))
        if "class_weights" in known:
            known["class_weights"] = list[float] | Literal["frequency"]
        return {"name": name, **check_types(f"likelihood {name!r}", settings, known)}

    def make(self, train: data.Dataset) -> Likelihood:
        """Return the likelihood, with the ignored label and frequency weights of the training data."""
        settings = self.settings
        if "ignore_index" in inspect.signature(LIKELIHOODS[self.name]).parameters:
            settings.setdefault("ignore_index", train.info.ignore_index)
        weights = settings.get("class_weights")
        if weights is not None:
            settings["class_weights"] = data.class_weights(train) if weights == "frequency" else torch.tensor(weights)
        return LIKELIHOODS[self.name](**settings)


class DataPart(Named):
    """A data set's name and options; the path of an npz or CSV file or of an image folder may replace the name."""

    @classmethod
    def checked(cls, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Check the types of the options; `load` checks the files."""
        # An absolute path, so that the run can be used from another folder.
        if name.lower().endswith((".npz", ".csv")):
            path = os.path.abspath(name) if os.path.isfile(name) else name
            name, settings = "npz", {"path": path, **settings}
        elif name not in LOADERS and os.path.isdir(name):
            name, settings = "imagefolder", {"path": os.path.abspath(name), **settings}
        if name not in LOADERS:
            raise unknown(name)
        common = types_of(data.load, drop=("name", "split", "data_dir", "options"))
        known = common | types_of(LOADERS[name], drop=("spec", "request"))
        return {"name": name, **check_types(f"data set {name!r}", settings, known)}

    def load(self, split: Literal["train", "val", "test"], data_dir: str | Path | None = None) -> data.Dataset:
        """Return one split."""
        return data.load(self.name, split, data_dir, **self.settings)


class ModelPart(Named):
    """A model's name and arguments.

    Arguments that follow from the data (classes, channels, features) may be omitted. `weights` is a checkpoint, inside
    the data folder or anywhere. The file of a trained network, or its run folder, may replace the name.
    """

    @classmethod
    def checked(cls, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Check the name; the arguments are checked when the model is built."""
        if not _is_network(name):
            models.argument_names(name)
        elif settings:
            raise UserError(f"model {name!r} is a trained network and does not take {', '.join(settings)}")
        return {"name": name, **settings}

    def build(
        self, train: data.Dataset, likelihood: Likelihood | None = None, data_dir: str | Path | None = None
    ) -> nn.Module:
        """Build the model for the data and load its weights."""
        outputs = _outputs(train, likelihood)
        known = _is_network(self.name)
        model = artifact.load(network_file(self.name)) if known else self._new(train, outputs, data_dir)
        self._check_fit(model, train, outputs)
        return model

    def _new(self, train: data.Dataset, outputs: int, data_dir: str | Path | None) -> nn.Module:
        args = self.settings
        if wrong := args.keys() & {"input_shape", "outputs"}:
            raise UserError(f"model {self.name!r}: {' and '.join(sorted(wrong))} follow from the data; leave them out")
        ours = ":" not in self.name or str(args.get("weights")).endswith(CHECKPOINT_SUFFIXES)
        weights = args.pop("weights", None) if ours else None
        try:
            model = models.build_for(self.name, train.info.input_shape, outputs, **args)
        except UserError:
            raise
        except (TypeError, RuntimeError, ValueError, AssertionError) as error:
            raise UserError(f"model {self.name!r}: {first_line(error)}") from error
        if weights is not None:
            inside, elsewhere = data.folder_of(data_dir) / str(weights), Path(str(weights)).expanduser()
            models.load_weights(model, elsewhere if elsewhere.is_file() and not inside.is_file() else inside)
        return model

    def _check_fit(self, model: nn.Module, train: data.Dataset, outputs: int) -> None:
        x, y = train[0]
        found = check_input(model, x, f"model {self.name!r}", f"data set {train.info.name!r}")
        expected = (outputs, *y.shape) if train.info.task == "segmentation" else (outputs,)
        if found != expected:
            raise UserError(
                f"model {self.name!r} returns shape {found} for one input of data set {train.info.name!r}, "
                f"where {train.info.task} needs {expected}"
            )


def check_input(model: nn.Module, x: torch.Tensor, who: str, whose: str) -> tuple[int, ...]:
    """Return the shape of a model's output for one input; reject an input that the model does not accept."""
    training = model.training
    try:
        with torch.no_grad():
            return tuple(model.eval()(x[None]).shape[1:])
    except (*MODEL_ERRORS, AttributeError) as error:
        shape = tuple(x.shape)
        raise UserError(f"{who} cannot take {whose}, inputs of shape {shape}: {first_line(error)}") from error
    finally:
        model.train(training)


def types_of(target: Callable[..., Any], drop: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parameters of a dataclass or function with their types."""
    function: Any = target.func if isinstance(target, partial) else target
    hints = typing.get_type_hints(function)
    if is_dataclass(function):
        return {field.name: hints[field.name] for field in fields(function)}
    return {name: hint for name, hint in hints.items() if name not in (*drop, "return")}


def check_types(where: str, settings: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings to their types."""
    values = {}
    for name, value in settings.items():
        if name not in known:
            raise UnknownNameError(f"setting of {where}", name, known)
        if isinstance(value, bool) and not _takes_bool(known[name]):  # of which pydantic would make a number
            raise UserError(f"{where}: {name}={value!r}: input should not be true or false")
        try:
            values[name] = TypeAdapter(known[name]).validate_python(value)
        except ValidationError as found:
            reasons = dict.fromkeys(error["msg"][:1].lower() + error["msg"][1:] for error in found.errors())
            raise UserError(f"{where}: {name}={value!r}: {' or '.join(reasons)}") from None
    return values


def _takes_bool(hint: Any) -> bool:
    return hint in (bool, Any) or any(_takes_bool(part) for part in typing.get_args(hint))


def _outputs(train: data.Dataset, likelihood: Likelihood | None) -> int:
    """Return the number of outputs per example or per pixel."""
    if train.info.classes is not None:
        return train.info.classes
    targets = train[0][1].numel()
    return targets if likelihood is None else likelihood.outputs_for(targets)


def _is_network(name: str) -> bool:
    return name.endswith(".pocket") or (("/" in name or "\\" in name) and os.path.isdir(name))
