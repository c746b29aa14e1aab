"""Models by name, with the name and arguments recorded in each model."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torch import nn

from pocketbayes.base.errors import UnknownNameError, UserError, first_line
from pocketbayes.base.registry import HINT, Registry
from pocketbayes.models.external import LIBRARIES, OUR_NAMES, VALUES, build_external, has_model, recognise_timm
from pocketbayes.models.lenet import lenet5, lenet300
from pocketbayes.models.mlp import mlp
from pocketbayes.models.resnet import resnet, resnet_cifar, resnet_small, wide_resnet
from pocketbayes.models.unet import UNet
from pocketbayes.models.vit import VisionTransformer

Make = TypeVar("Make", bound=Callable[..., nn.Module])
# A name is a constructor with defaults; `build` may override any of them.
_BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lenet300": lenet300,
    "lenet5": lenet5,
    "resnet20": partial(resnet_cifar, depth=20),
    "resnet32": partial(resnet_cifar, depth=32),
    "resnet56": partial(resnet_cifar, depth=56),
    "resnet-small": resnet_small,
    "resnet18": partial(resnet, depths=(2, 2, 2, 2), bottleneck=False),
    "resnet50": partial(resnet, depths=(3, 4, 6, 3), bottleneck=True),
    "resnet101": partial(resnet, depths=(3, 4, 23, 3), bottleneck=True),
    "wrn-28-10": partial(wide_resnet, depth=28, width=10),
    "vit-ti": partial(VisionTransformer, dim=192, heads=3),
    "vit-s": partial(VisionTransformer, dim=384, heads=6),
    "vit-b": partial(VisionTransformer, dim=768, heads=12),
    "unet": partial(UNet, widths=(64, 128, 256, 512, 1024)),
    "unet-small": partial(UNet, widths=(16, 32, 64, 128)),
}
MODELS: Registry[Callable[..., nn.Module]] = Registry("model")
MODELS.update(_BUILT_IN)
"""The constructors of the built-in and registered models."""
_SPEC = "_pocketbayes_spec"


@dataclass(frozen=True)
class ModelSpec:
    """Name and arguments that rebuild a model's structure, without weights: `build(spec.name, **spec.args)`."""

    name: str
    args: dict[str, Any]


def names() -> tuple[str, ...]:
    """Return the names of the built-in and registered models; `build` also takes `torchvision:NAME`, `timm:NAME`."""
    return tuple(MODELS)


def register(name: str) -> Callable[[Make], Make]:
    """Register your own class or function under a name, as a decorator.

    A network of `build(name, ...)` is saved with the name and the arguments, so that `load` needs no `model=`, and the
    command line reads its file with `--import MODULE`, the module that registers it.

    Example:
        >>> @pb.models.register("my-cnn")
        ... class MyCNN(nn.Module): ...
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise UserError(f"a model's name must be a string without a colon, such as 'my-cnn', not {name!r}")

    def join(make: Make) -> Make:
        MODELS.join(name, make)
        return make

    return join


def is_built_in(name: str) -> bool:
    """Return whether a model is one of ours, all of whose tensors a file replaces."""
    return name in _BUILT_IN


def build(name: str, **args: Any) -> nn.Module:
    """Build a model by name and record its specification (see `spec_of`).

    Args:
        name: One of `names()`, `torchvision:NAME` or `timm:NAME`.
        **args: The model's own arguments, JSON values only; most models take `classes` and `in_channels`.
            Nothing is downloaded unless `weights=` (torchvision, by name) or `pretrained=True` (timm) is given.

    Raises:
        UnknownNameError: If there is no such model.
        UserError: If the model does not take an argument, or a file could not store it.
    """
    if not isinstance(name, str):
        raise UserError(f"a model's name must be a string, such as 'mlp', not {name!r}")
    args = {key: _jsonable(name, key, value) for key, value in args.items()}
    library, separator, external_name = name.partition(":")
    if separator:
        model = build_external(library, external_name, args)
        args = {key: value for key, value in args.items() if key not in VALUES}
    else:
        model = _build_by_constructor(name, args)
    empty = next((key for key, tensor in model.named_parameters() if not tensor.numel()), None)
    if empty is not None:
        raise UserError(f"model {name!r}: {empty} has no values: sizes must be at least 1")
    model.__dict__[_SPEC] = ModelSpec(name, args)  # bypasses nn.Module's bookkeeping; deepcopy and pickle copy it
    return model


def build_for(name: str, input_shape: Sequence[int], outputs: int, **args: Any) -> nn.Module:
    """Build a model for a given input shape and number of outputs, unless `args` set them.

    Args:
        name: As in `build`.
        input_shape: The shape of one input, without the batch: (features,) or (channels, height, width).
        outputs: The number of classes, or of values to predict.
        **args: As in `build`; they take precedence.
    """
    fitting = {"in_features": math.prod(input_shape), "classes": outputs, "out_features": outputs}
    if len(input_shape) == 3:
        fitting |= {"in_channels": input_shape[0], "image_size": input_shape[1]}
    wanted = argument_names(name)
    return build(name, **{**{key: value for key, value in fitting.items() if key in wanted}, **args})


def argument_names(name: str) -> tuple[str, ...]:
    """Return a model's argument names; for other libraries only those that we translate."""
    library, separator, _ = name.partition(":")
    if separator:
        return OUR_NAMES.get(library, ())
    return tuple(inspect.signature(constructor(name)).parameters)


def spec_of(model: nn.Module) -> ModelSpec | None:
    """Return how `build` made this model, or None for a model from elsewhere."""
    return model.__dict__.get(_SPEC)


def recognise(model: nn.Module) -> None:
    """Record the specification of a model that timm built by name, so that its file loads without `model=`."""
    if spec_of(model) is None and (found := recognise_timm(model)) is not None:
        name, args = found
        model.__dict__[_SPEC] = ModelSpec(f"timm:{name}", args)


def _build_by_constructor(name: str, args: dict[str, Any]) -> nn.Module:
    make = constructor(name)
    signature = inspect.signature(make)
    try:
        signature.bind(**args)
    except TypeError as error:
        raise UserError(f"model {name!r}: {error}; its arguments are {', '.join(signature.parameters)}") from error
    try:
        return make(**args)
    except UserError:
        raise
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        raise UserError(
            f"model {name!r} cannot be built with {args}: {first_line(error).partition('. ')[0]}"
        ) from error


def constructor(name: str) -> Callable[..., nn.Module]:
    """Return the constructor of a built-in or registered model."""
    if name not in MODELS:
        elsewhere = [f"{library}:{name}" for library in LIBRARIES if has_model(library, name)]
        raise UnknownNameError("model", name, elsewhere or MODELS, HINT)
    return MODELS[name]


def _jsonable(name: str, key: str, value: Any) -> Any:
    """Return the value as a file would return it (a tuple as a list)."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        reason = f"is a {type(value).__name__}, which a file cannot store"
        raise UserError(f"model {name!r}: {key} {reason}; give numbers, strings or lists of them") from error
