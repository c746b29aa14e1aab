"""The operations that are linear in their weight, read in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.gaussian import Gaussian, Op, RuleTable, tensors_in

LINEAR_OPS: frozenset[Any] = frozenset(
    (
        F.linear,
        *(torch.conv1d, torch.conv2d, torch.conv3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    )
)
"""op(input, weight, bias, ...): linear in the weight, and in the input."""


@dataclass(frozen=True)
class LinearCall:
    """op(input, weight, bias), its other arguments bound."""

    run: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    channels_first: bool

    @classmethod
    def read(cls, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LinearCall:
        """Reads the call whichever way its arguments were passed."""
        named = dict(kwargs)
        names = ("input", "weight", "bias")
        for name, value in zip(names, args):
            named[name] = value
        input, weight, bias = (named.pop(name, None) for name in names)
        rest = args[3:]

        def run(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            return op(x, w, b, *rest, **named)  # type: ignore[no-any-return]

        return cls(run, input, weight, bias, op is not F.linear)


class LinearRules(RuleTable):
    """Tables with one rule, for operations that are linear in a Gaussian weight."""

    def covers(self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], weight: Tensor) -> bool:
        """True for the weight of a linear operation, and for its bias if the weight is random too."""
        if op not in LINEAR_OPS:
            return False
        call = LinearCall.read(op, args, kwargs)
        return weight is call.weight or (weight is call.bias and type(call.weight) is type(weight))

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Applies the rule, each Gaussian once: a second use would draw a second, different weight."""
        for value in tensors_in((args, kwargs)):
            if isinstance(value, Gaussian):
                if value.spent or op not in LINEAR_OPS:
                    raise RuntimeError(
                        f"{self.name} propagation was planned for one use of each weight by a linear operation, but "
                        f"{getattr(op, '__name__', op)} uses a weight of shape {tuple(value.shape)} otherwise: the "
                        "model's flow changed since its first call; call net.forget_plan() or use propagation='sample'"
                    )
                value.spent = True
        return self.apply(LinearCall.read(op, args, kwargs))

    def apply(self, call: LinearCall) -> Tensor:
        """The rule; the weight is a Gaussian, the bias may be one."""
        raise NotImplementedError


def loc(value: Tensor | None) -> Tensor | None:
    """The mean of a Gaussian, anything else itself."""
    return value.loc if isinstance(value, Gaussian) else value
