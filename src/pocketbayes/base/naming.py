"""Name an argument of a wrong type in one line, by the annotations of the function that was called.

A function decorated with `naming_arguments` pays nothing while it works: only after an error are its arguments compared
with its annotations.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial, wraps
from numbers import Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
from torch import Tensor

from pocketbayes.base.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
ERRORS = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, ArithmeticError)
"""Errors that an argument of a wrong type may cause anywhere."""
WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def naming_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function's error name the first argument that does not fit its annotation, if there is one."""

    @wraps(function)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ERRORS as error:
            wrong = None if isinstance(error, UserError) else _first_wrong(function, args, kwargs)
            if wrong is None:
                raise
            raise UserError(wrong) from error

    return named


def name_arguments_of(package: str) -> None:
    """Decorate the functions that a package exports; its modules call the plain ones."""
    exported = vars(sys.modules[package])
    for name in exported["__all__"]:
        if inspect.isfunction(function := exported.get(name)):
            exported[name] = naming_arguments(function)
            exported[name].__module__ = package  # where pickle finds it


def check_fields(instance: Any) -> None:
    """Reject a dataclass with a value that does not fit its annotation."""
    kind: type = type(instance)
    for name, hint in _hints_of_fields(kind).items():
        if not fits(value := getattr(instance, name), hint):
            raise UserError(f"{name} must be {in_words(hint)}, not {_shortened(value)}")


@lru_cache
def _hints_of_fields(kind: type) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        scope |= _names_of(each)
    return {field.name: _resolved(field.type, scope) for field in fields(kind)}


def _first_wrong(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    source = function.func if isinstance(function, partial) else function
    signature, scope = inspect.signature(function), _names_of(source)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # too many or too few arguments, which Python's own message names
        return None
    for name, value in given.items():
        parameter = signature.parameters[name]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = _resolved(parameter.annotation, scope)
        if not fits(value, hint):
            return f"{name} must be {in_words(hint)}, not {_shortened(value)}"
    return None


def _names_of(source: Any) -> dict[str, Any]:
    """Return the names that a module defines; none for code that was run without being imported."""
    module = sys.modules.get(source.__module__)
    return {} if module is None else vars(module)


def _resolved(annotation: Any, scope: dict[str, Any]) -> Any:
    """Return the type of an annotation; Any if only type checkers know its names."""
    try:
        return eval(annotation, scope) if isinstance(annotation, str) else annotation
    except (NameError, TypeError, AttributeError):
        return Any


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value may be given where a type is expected; True for types that are not checked."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, tuple({type(part) for part in parts}))  # names of users' own parts are looked up later
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return isinstance(value, Mapping) if issubclass(origin, Mapping) else _fits_items(value, origin, parts)
    if origin is Callable or hint is Callable:
        return callable(value)
    if hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    if hint in (int, float):
        return _is_number(value, hint)
    return isinstance(value, {bool: (bool, np.bool_), Path: (str, os.PathLike)}.get(hint, hint))


def _fits_items(value: Any, origin: type, parts: Sequence[Any]) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim > 0
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return False
    mixed = origin is tuple and len(parts) > 1 and parts[-1] is not Ellipsis
    return mixed or not isinstance(value, Collection) or all(fits(item, part) for part in parts[:1] for item in value)


def _is_number(value: Any, hint: type) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim == 0
    if hint is int:
        return hasattr(type(value), "__index__") and -(1 << 63) <= int(value) < 1 << 63
    try:
        return isinstance(value, Real) and isinstance(float(value), float)
    except OverflowError:
        return False


def in_words(hint: Any) -> str:
    """Describe a type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = [in_words(part) for part in parts if not (part is str and Path in parts)]
        return " or ".join(sorted(dict.fromkeys(words), key=lambda word: word == "None"))
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        items = PLURALS.get(parts[0]) if parts else None
        return "a mapping" if issubclass(origin, Mapping) else f"a list of {items}" if items else "a list"
    if origin is Callable or hint is Callable:
        return "a function"
    return "None" if hint in (None, type(None)) else WORDS.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _shortened(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return "an integer of more than 64 bits"
    if isinstance(value, (str, bytes, int, float, type(None))) and len(repr(value)) < 60:
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
