"""The operations that are linear in their weight, with a uniform view of their arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.base.randomness import Randomness
from pocketbayes.posteriors.gaussian import Gaussian, Op, RuleTable, noise_like, tensors_in

LINEAR_OPS: dict[Any, int] = {
    F.linear: -1,
    torch.conv1d: -2,
    torch.conv2d: -3,
    torch.conv3d: -4,
    torch.conv_transpose1d: -2,
    torch.conv_transpose2d: -3,
    torch.conv_transpose3d: -4,
}
"""The feature axis of each `op(input, weight, bias, ...)` that is linear in weight and input."""


@dataclass(frozen=True)
class LinearCall:
    """A call op(input, weight, bias) with its other arguments bound.

    `feature_axis` counts from the end, in input and output; any axis before it is a batch.
    """

    run: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    feature_axis: int

    @classmethod
    def read(cls, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LinearCall:
        """Read positional or keyword arguments."""
        names = ("input", "weight", "bias")
        named = {**kwargs, **dict(zip(names, args))}
        input, weight, bias = (named.pop(name, None) for name in names)
        rest = args[3:]

        def run(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            return op(x, w, b, *rest, **named)  # type: ignore[no-any-return]

        return cls(run, input, weight, bias, LINEAR_OPS[op])


class LinearRules(RuleTable):
    """Rule tables for operations that are linear in a Gaussian weight."""

    randomness: Randomness | None = None

    def drawing_from(self, randomness: Randomness | None) -> LinearRules:
        """Return a table that draws from the given generators."""
        if randomness is None:
            return self
        table = copy(self)
        table.randomness = randomness
        return table

    def generator(self, like: Tensor) -> torch.Generator | None:
        """Return the generator for a tensor's device."""
        return None if self.randomness is None else self.randomness.on(like.device)

    def options(self, like: Tensor) -> dict[str, Any]:
        """Return device and generator as keywords of torch's functions."""
        generator = self.generator(like)
        return {"device": like.device} if generator is None else {"device": like.device, "generator": generator}

    def normal(self, like: Tensor) -> Tensor:
        """Draw standard normal noise in the shape of a tensor."""
        return noise_like(like, self.generator(like))

    def covers(self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], weight: Tensor) -> bool:
        """Return whether the tensor is the weight or the bias of a linear operation."""
        if op not in LINEAR_OPS:
            return False
        call = LinearCall.read(op, args, kwargs)
        return weight is call.weight or weight is call.bias

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Apply the rule; each Gaussian is used once, since a second use would draw a different weight."""
        call = LinearCall.read(op, args, kwargs) if op in LINEAR_OPS else None
        for value in tensors_in((args, kwargs)):
            if isinstance(value, Gaussian):
                if call is None or value is call.input or value.spent:
                    raise RuntimeError(
                        f"{self.name} propagation was planned for one use of each weight by a linear operation, but "
                        f"{getattr(op, '__name__', op)} uses a weight of shape {tuple(value.shape)} otherwise: the "
                        "model's flow changed since its first call; call net.forget_plan() or use propagation='sample'"
                    )
                value.spent = True
        assert call is not None
        if not isinstance(call.weight, Gaussian):
            assert isinstance(call.bias, Gaussian)
            return call.run(call.input, call.weight, self._draw(call.bias))
        return self.apply(call, call.weight)

    def _draw(self, value: Gaussian) -> Tensor:
        return torch.addcmul(value.loc, value.stddev, self.normal(value.loc))

    @abstractmethod
    def apply(self, call: LinearCall, weight: Gaussian) -> Tensor:
        """Apply the rule to a Gaussian weight and a plain or Gaussian bias."""


def shape_per_example(x: Tensor, feature_axis: int) -> list[int]:
    """Return the shape of noise per example and feature, shared by all positions like a draw of the weight."""
    shape = [1] * x.ndim
    shape[feature_axis] = x.shape[feature_axis]
    if x.ndim > -feature_axis:
        shape[0] = x.shape[0]
    return shape
