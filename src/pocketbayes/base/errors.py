"""The one exception for mistakes a user can mend: the command line prints its line and exits with 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """A wrong name, file, value or model. The message names the thing, the place and the way out."""


class NoSplitError(UserError):
    """Data that come without the split that was asked for."""


class NotFiniteAnswersError(UserError):
    """A network that answers with what is no number."""


class UnknownNameError(UserError):
    """A name that no registry knows; the message lists those it could have been."""

    def __init__(self, kind: str, name: object, known: object, advice: str = "") -> None:
        import difflib

        names = sorted(str(k) for k in known)  # type: ignore[attr-defined]
        spelled = {each.lower(): each for each in names}  # 'PBN' means 'pbn'
        close = difflib.get_close_matches(str(name).lower(), spelled, n=1)
        hint = f"did you mean {spelled[close[0]]!r}? " if close else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}{advice}known are {', '.join(names)}")


@contextmanager
def refusing(path: object, kind: str, way_out: str = "") -> Iterator[None]:
    """Turn whatever a parser fails with into a `UserError` that names the file.

    For blocks that do nothing but parse: a file that is not what it should be can fail in as many ways as there are
    parsers.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: not {kind} ({reason}){way_out}") from None
