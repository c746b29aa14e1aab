"""Errors and warnings for what a user can fix; the command line prints an error as one line and exits with code 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class UserError(ValueError):
    """A wrong name, file, value or model. The message says what is wrong, where, and what to do."""


class NoSplitError(UserError):
    """Data without the requested split."""


class MisfitError(UserError, RuntimeError):
    """Inputs that a model does not accept, for which torch raises a `RuntimeError`."""


class NotFiniteAnswersError(UserError):
    """A network whose outputs are NaN or infinite."""


class UnknownNameError(UserError):
    """A name that is not in a registry; the message suggests similar ones."""

    def __init__(self, kind: str, name: object, known: object, advice: str = "") -> None:
        import difflib

        names = sorted(str(k) for k in known)  # type: ignore[attr-defined]
        spelled = {each.lower(): each for each in names}  # 'PBN' means 'pbn'
        close = difflib.get_close_matches(str(name).lower(), spelled, n=1)
        hint = f"did you mean {spelled[close[0]]!r}? " if close else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}{advice}known are {', '.join(names)}")


def first_line(error: Exception) -> str:
    """Return the first line of another library's message; its type's name if it has none."""
    text = (str(error).splitlines() or [""])[0]
    return "there is not enough memory for it" if "alloc_cpu" in text else text or type(error).__name__


_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected", default=None)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called the package, however deep inside the cause is."""
    if (collected := _COLLECTED.get()) is not None:
        collected.append(message)
        return
    package, _, _ = __name__.partition(".")
    frame, depth, outermost = sys._getframe(), 1, 1
    while (caller := frame.f_back) is not None:
        frame, depth = caller, depth + 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            outermost = depth
    warnings.warn(message, category, stacklevel=outermost + 1)


@contextmanager
def collecting_warnings() -> Iterator[list[str]]:
    """Collect the messages of this package's warnings instead of issuing them; safe in threads."""
    messages: list[str] = []
    token = _COLLECTED.set(messages)
    try:
        yield messages
    finally:
        _COLLECTED.reset(token)


@contextmanager
def refusing(path: object, kind: str, way_out: str = "") -> Iterator[None]:
    """Turn any parser error into a `UserError` that names the file.

    Use it around parsing only: parsers raise errors of many kinds on damaged files.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: not {kind} ({reason}){way_out}") from None
