"""Calls of a user's model: the inputs that its forward takes, and the predictions among its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import MisfitError, UserError, first_line
from pocketbayes.data import Info
from pocketbayes.data.model_inputs import Inputs

MODEL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""Errors that torch and model libraries raise for inputs of a wrong shape, type or value."""
OUTPUTS = ("logits", "out", "predictions")
"""Names of the predictions among several outputs of a model."""


class Call(NamedTuple):
    """Several arguments of a model, instead of the usual single tensor."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def unpack(x: Any) -> Call:
        """Return the call itself, or a call with a single tensor."""
        return x if isinstance(x, Call) else Call((x,), {})


def call_model(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a model; with a single argument, a tensor or `Inputs`, return only its predictions.

    Named inputs that the model's forward does not take, such as row numbers, are dropped. Other calls return the
    model's outputs unchanged.
    """
    if len(args) != 1 or kwargs:
        return model(*args, **kwargs)
    (x,) = args
    if isinstance(x, Inputs):
        taken = accepted(model, x)
        output = model(*taken.args, **taken.kwargs)
    else:
        output = model(x)
    return output if isinstance(output, Tensor) else answer_of(output)


def answer_of(output: Any) -> Any:
    """Return the tensor of predictions among a model's outputs, or the output itself if there is none.

    Tuples of several tensors, such as GoogLeNet's with auxiliary heads, are kept, since each may have a loss.
    """
    several = isinstance(output, tuple) and sum(isinstance(value, Tensor) for value in output) > 1
    if isinstance(output, Tensor) or several:
        return output
    for name in OUTPUTS:
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, (tuple, list, Mapping)) and len(output) == 1:
        (value,) = output.values() if isinstance(output, Mapping) else output
        return value if isinstance(value, Tensor) else output
    return output


def accepted(model: nn.Module, x: Inputs) -> Inputs:
    """Return the inputs that the model's forward takes; a single input with another name is passed by position."""
    if torch.compiler.is_compiling():  # signatures cannot be inspected
        return x
    signature = inspect.signature(model.forward)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        return x
    taken = Inputs(x.args, {name: value for name, value in x.kwargs.items() if name in signature.parameters})
    if not taken.tensors and len(x.tensors) == 1:
        taken = Inputs(x.tensors)
    try:
        signature.bind(*taken.args, **taken.kwargs)
    except TypeError as error:
        names = ", ".join(x.kwargs) or f"{len(x.args)} without names"
        raise UserError(
            f"the model's forward takes {', '.join(signature.parameters)}, but the data have {names}: {error}"
        ) from error
    return taken


@contextmanager
def naming_misfits(
    x: Any, run_plainly: Callable[[], object], mode: AbstractContextManager[object], info: Info | None
) -> Iterator[None]:
    """Turn an error of a pass into one line if the plain model rejects the inputs as well.

    Args:
        x: The inputs of the pass.
        run_plainly: A run of the model without any propagation, tried only after an error.
        mode: The model's evaluation mode, for that run.
        info: The description of the training data, if known.

    Raises:
        MisfitError: With the shape and type of the inputs, and what the model says about them.
    """
    try:
        yield
    except MODEL_ERRORS as error:
        if isinstance(error, (UserError, torch.OutOfMemoryError)) or not _fails(run_plainly, mode):
            raise
        advice = "check the shape and type of the data (x.float())"
        if info is not None:
            advice = f"the network was trained on {tuple(info.input_shape)}, normalised real numbers"
        given = f" {tuple(x.shape)} of type {x.dtype}" if isinstance(x, Tensor | Inputs) else ""
        raise MisfitError(f"the model does not accept inputs{given}: {first_line(error)}; {advice}") from error


def _fails(run: Callable[[], object], mode: AbstractContextManager[object]) -> bool:
    try:
        with torch.no_grad(), mode:
            run()
    except MODEL_ERRORS:
        return True
    return False
