"""The command line: `pocketbayes train`, `compress`, `evaluate` and so on; `pocketbayes --help` lists them."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pocketbayes.base.errors import UserError
from pocketbayes.cli import (
    adapt,
    calibrate,
    compress,
    corruptions,
    demo,
    ensemble,
    evaluate,
    export,
    inspect,
    listing,
    predict,
    report,
    reproduce,
    train,
)
from pocketbayes.cli.output import complain

MISTAKE = 2
INTERRUPTED = 130


class Commands(TyperGroup):
    """A command group that reports user errors as one line on stderr with exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command and exit."""
        kwargs["standalone_mode"] = False  # otherwise wrong options are printed in a frame of many lines
        try:
            code = super().main(*args, **kwargs)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            complain(f"{error.format_message()} (see {_help_of(error)})")
            code = MISTAKE
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reject empty arguments: as a path, an unset shell variable means the current folder."""
        if "" in args:
            raise typer.BadParameter("an argument is empty: is a shell variable not set?")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the requested command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            complain(str(error))
        except KeyboardInterrupt as error:
            if error.args != ("",):  # otherwise another process prints it
                complain(str(error) or "stopped", label="")
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            complain("not enough memory")
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output has closed it, like `head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(1) from None
            complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        raise typer.Exit(MISTAKE)


def _help_of(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'pocketbayes'} --help"


app = typer.Typer(
    cls=Commands,
    help="Bayesian neural networks that are small to store and cheap to use.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="A Python module or file that defines your own models or methods; may be repeated.",
        ),
    ] = None,
) -> None:
    for module in modules or ():
        import_parts(module)
    if version:
        from pocketbayes import __version__

        typer.echo(__version__)
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def import_parts(module: str) -> None:
    """Import a user's models, methods, storages, propagations, likelihoods and data sets: once defined, they are known.

    Args:
        module: A name, looked for in the current folder too, or the path of a file.
    """
    file = Path(module)
    folder, name = (file.parent, file.stem) if file.suffix == ".py" else (Path(), module)
    sys.path.insert(0, str(folder.resolve()))
    try:
        importlib.import_module(name)
    except Exception as error:
        raise UserError(f"--import {module}: {type(error).__name__}: {error}") from error


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "train": train.train,
    "ensemble": ensemble.ensemble,
    "compress": compress.compress,
    "adapt": adapt.adapt,
    "evaluate": evaluate.evaluate,
    "calibrate": calibrate.calibrate,
    "predict": predict.predict,
    "corruptions": corruptions.corruptions,
    "report": report.report,
    "reproduce": reproduce.reproduce,
    "export": export.export,
    "inspect": inspect.inspect,
    "list": listing.list_,
}


def _reflowed(text: str) -> str:
    """Join the lines of each paragraph, since the terminal wraps them; indented examples are unchanged."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(part if "\n  " in part else part.replace("\n", " ") for part in paragraphs)


for name, command in COMMANDS.items():
    app.command(name, help=_reflowed(cleandoc(command.__doc__ or "")))(command)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = lambda message, *_, **__: complain(str(message), "warning: ")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal may only support ASCII
    app()
