"""Arguments of a wrong type are named in one line."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import pocketbayes as pb
from pocketbayes.base.errors import UserError
from pocketbayes.base.naming import check_fields, fits, in_words, naming_arguments
from pocketbayes.inference.prediction import predict


@naming_arguments
def double(count: int, path: str | Path | None = None, **settings: Any) -> int:
    """Double a number."""
    return abs(count) * 2


@dataclass(frozen=True)
class Settings:
    rate: float
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


FITTING: list[tuple[Any, Any]] = [
    (np.int64(3), int), (torch.tensor(3), int), (True, int), (2, float), (np.float32(2), float), (float("inf"), float),
    ("a", str | Path), (Path("a"), Path), (None, int | None), ([1, 2], Sequence[int]), (np.ones(2), Sequence[float]),
    ({}, Mapping[str, Any]), (len, Callable[[Any], int]), ("own", Literal["a", "b"]), ((1, "a"), tuple[int, str]),
    (object(), Any), (torch.ones(2), torch.Tensor),
]  # fmt: skip
MISFITTING: list[tuple[Any, Any, str]] = [
    ("3", int, "a whole number"),
    (1.5, int, "a whole number"),
    (10**30, int, "a whole number"),
    (10**400, float, "a number"),
    (None, float, "a number"),
    (1, bool, "True or False"),
    (3, str | Path | None, "a path or None"),
    (["a"], Sequence[int], "a list of whole numbers"),
    ("ab", Sequence[str], "a list of texts"),
    (3, Sequence[Any], "a list"),
    ([], Mapping[str, int], "a mapping"),
    (3, Callable[[], int], "a function"),
    (3, Literal["a", "b"], "'a' or 'b'"),
    (3, torch.Tensor, "a Tensor"),
]


@pytest.mark.parametrize(("value", "hint"), FITTING)
def test_fits_accepts_what_a_function_can_use(value: Any, hint: Any) -> None:
    assert fits(value, hint)


@pytest.mark.parametrize(("value", "hint", "words"), MISFITTING)
def test_fits_refuses_other_types_and_describes_its_own(value: Any, hint: Any, words: str) -> None:
    assert not fits(value, hint)
    assert in_words(hint) == words


def test_naming_arguments_names_the_argument_of_an_error() -> None:
    assert double(2) == 4
    assert double.__name__ == "double"
    with pytest.raises(UserError, match=r"^count must be a whole number, not 'a'$") as caught:
        double("a")  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(UserError, match="count must be a whole number, not an object"):
        double(object())  # type: ignore[arg-type]


def test_naming_arguments_keeps_errors_of_fitting_arguments() -> None:
    @naming_arguments
    def fail(count: int) -> None:
        raise RuntimeError(f"a defect {count}")

    with pytest.raises(RuntimeError, match="a defect 3"):
        fail(3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        double()  # type: ignore[call-arg]


def test_public_functions_name_their_arguments() -> None:
    assert pb.predict is not predict
    assert inspect.signature(pb.predict) == inspect.signature(predict)
    assert pb.predict.__doc__ == predict.__doc__
    with pytest.raises(UserError, match="subset must be a number of rows, or a list of row numbers"):
        pb.data.load("digits", subset="a")  # type: ignore[arg-type]


@pytest.mark.parametrize("package", [pb, pb.data])
def test_public_functions_can_be_pickled(package: Any) -> None:
    functions = [value for name in package.__all__ if inspect.isfunction(value := vars(package).get(name))]
    assert len(functions) > 5
    assert all(pickle.loads(pickle.dumps(function)) is function for function in functions)


def test_check_fields_names_a_field_of_a_wrong_type() -> None:
    assert Settings(2, ("a",)).rate == 2
    with pytest.raises(UserError, match=r"^rate must be a number, not 'a'$"):
        Settings("a")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^names must be a list of texts, not a tuple$"):
        Settings(1.0, (1,))  # type: ignore[arg-type]
