"""The rule table of moment propagation, and the registration of rules."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.gaussian import Gaussian, Op, RuleTable, mean_of, tensors_in

Rule = Callable[..., Any]
"""A function with the operation's arguments, at least one a Gaussian, that returns random results as Gaussians."""

R = TypeVar("R", bound=Rule)

RULES: dict[Op, Rule] = {}
"""The rules that every moments table shares."""


class NoRuleError(UserError):
    """An operation on a Gaussian without a rule."""

    wayout = "add one with pb.register_moment_rule, or use propagation='linear' or 'sample'"

    def __init__(self, propagation: str, operation: str, where: str = "") -> None:
        self.propagation, self.operation = propagation, operation
        super().__init__(f"{propagation} propagation has no rule for {operation}{where}: {self.wayout}")

    def at(self, where: str) -> NoRuleError:
        """Return the same error with its location in the model."""
        return type(self)(self.propagation, self.operation, f", used in {where}")


def module_of(error: Exception, model: nn.Module) -> str:
    """Return the path of the innermost module in the error's traceback."""
    names = {id(module): name for name, module in model.named_modules()}
    where = f"the model ({type(model).__name__})"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if names.get(id(module)):
            where = f"{names[id(module)]!r} ({type(module).__name__})"
    return where


class MomentRules(RuleTable):
    """Mean and variance of every activation with independent entries, without sampling (VDP++).

    An operation without a rule raises an error that names it. Independence is exact within one layer of an MLP.
    Positions of a convolution and tokens of a transformer share weights, and residual branches share their input; there
    the variance is an approximation, to be compared with weight samples.
    """

    draws = False
    error: type[NoRuleError] = NoRuleError

    def __init__(self, name: str, rules: Mapping[Op, Rule] = RULES, own: Mapping[Op, Rule] | None = None) -> None:
        """Take the propagation's name, its rules, and its own ones, which come before them."""
        self.name, self.rules, self.own = name, rules, own or {}

    def covers(self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], weight: Tensor) -> bool:
        """Return whether the operation has a rule."""
        return op in self.own or op in self.rules

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply the rule; Gaussian outputs keep using this table."""
        rule = self.own.get(op) or self.rules.get(op)
        if rule is None:
            raise self.error(self.name, operation_name(op))
        result = rule(*args, **kwargs)
        for value in tensors_in(result):
            if isinstance(value, Gaussian):
                value.rules = self
        return result


def register_moment_rule(op: Op, rule: Rule) -> None:
    """Add an operation to moment propagation.

    Example:
        The error function to first order, `var f'(mean)^2`:

        >>> def erf(x):
        ...     slope = 2 / math.pi**0.5 * torch.exp(-x.loc.square())
        ...     return pb.Gaussian(torch.erf(x.loc), x.variance * slope.square())
        >>> pb.register_moment_rule(torch.erf, erf)

    Args:
        op: The function as the model calls it, such as `torch.erf`; `torch.Tensor.erf` is another.
        rule: Takes the same arguments, Gaussians among them, and returns a Gaussian.
    """
    if not callable(op) or not callable(rule):
        raise UserError("register_moment_rule takes a torch function and a rule with the same arguments")
    RULES[op] = rule


def rule(*names: str, ops: Iterable[Op] = (), rules: dict[Op, Rule] = RULES) -> Callable[[R], R]:
    """Register the decorated rule for every function of these names: `torch.relu`, `Tensor.relu`, `F.relu`."""

    def register(function: R) -> R:
        rules.update(dict.fromkeys((*handles(*names), *ops), function))
        return function

    return register


def handles(*names: str) -> list[Op]:
    """Return torch's functions of these names, and Python's operators, which compiled code calls."""
    spaces = (torch, torch.Tensor, F, operator)
    return [getattr(space, name) for name in names for space in spaces if hasattr(space, name)]


def operation_name(op: Op) -> str:
    """Return the operation's public name."""
    return str(torch.overrides.resolve_name(op) or getattr(op, "__qualname__", repr(op)))


def means_in(value: Any) -> Any:
    """Replace every Gaussian in nested arguments by its mean."""
    return _replace(value, mean_of)


def variances_in(value: Any) -> Any:
    """Replace every Gaussian in nested arguments by its variance, and other real tensors by zeros."""
    return _replace(value, _variance_or_zero)


def _variance_or_zero(value: Tensor) -> Tensor:
    if isinstance(value, Gaussian):
        return value.variance
    return torch.zeros_like(value) if value.is_floating_point() else value


def _replace(value: Any, by: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return by(value)
    if isinstance(value, (list, tuple)) and any(True for _ in tensors_in(value)):
        return type(value)(_replace(item, by) for item in value)
    return value


def in_place(function: Rule, operation: str) -> Callable[..., Gaussian]:
    """Return the rule of an in-place operation, such as `add_` from `add`."""

    def change(x: Tensor, *args: Any, **kwargs: Any) -> Gaussian:
        target = changeable(x, operation)
        # The rule works on a copy, since tensors saved by autograd must not change.
        copy = Gaussian(target.loc.clone(), target.variance.clone())
        result = function(copy, *(copy if arg is x else arg for arg in args), **kwargs)
        target.loc.copy_(result.loc)
        target.variance.copy_(result.variance)
        return target

    return change


def changeable(x: Any, operation: str) -> Gaussian:
    """Return the argument; reject a plain tensor, which cannot become random in place."""
    if not isinstance(x, Gaussian):
        raise UserError(
            f"{operation} would write a random value into a plain tensor of shape {tuple(x.shape)}, which moment "
            "propagation cannot do: write the operation so that it returns a new tensor"
        )
    return x
