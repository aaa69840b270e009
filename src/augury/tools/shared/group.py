"""Command groups that load commands lazily and show errors as one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from shutil import get_terminal_size
from typing import Any, Literal

import typer
from typer.core import TyperGroup

from augury.config.errors import ConfigError
from augury.model.errors import ModelError
from augury.tools.shared.safe_text import safe_text

UsageError: Any = typer.BadParameter.__base__  # typer has its own copy of click, or click itself, by version
WIDE = 140  # columns from which every command's help panels have room for the option names
EXTRAS = {
    "matplotlib": "bench",
    "numba": "traces",
    "tokenizers": "traces",
    "llama_cpp": "llamacpp",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
}  # everything else that may be missing is the engine's


class Commands(TyperGroup):
    """Turns errors that the user can fix into one line and an exit code; AUGURY_DEBUG=1 shows the traceback instead."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the options before the command's name."""
        with _one_line():
            return super().make_context(*args, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and load it if it is only a stub."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, real(command, name), rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _one_line():
            return super().invoke(ctx)


def real(command: Any, name: str | None) -> Any:
    """The command itself, imported if it is only a stub of `later`."""
    place = getattr(getattr(command, "callback", None), "place", "")
    if not place:
        return command
    module, _, function = place.partition(":")
    loaded = getattr(import_module(module), function)
    return typer.main.get_command(loaded) if isinstance(loaded, typer.Typer) else alone(loaded, name)


def alone(function: Any, name: str | None) -> Any:
    """A function as a stand-alone command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=panels())
    app.command(name)(function)
    return typer.main.get_command(app)


class WordsOrCommands(Commands):
    """A command that takes any words but also has subcommands; a first word that names one selects it."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the words as those of the subcommand that the first one names, otherwise as this command's own."""
        if args[:1] == ["--help"]:
            return super().make_context(info_name, args, parent, **extra)
        below = args[0] if args[:1] and args[0] in self.commands else None
        with _one_line():
            if below is None:
                return alone(self.callback, info_name).make_context(info_name, args, parent, **extra)
            path = f"{info_name} {below}"
            return real(self.commands[below], below).make_context(path, args[1:], parent, **extra)

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, without the arguments if `ctx` is a subcommand's, whose usage line must not show them."""
        found = super().get_params(ctx)
        return found if ctx.command is self else [one for one in found if one.param_type_name != "argument"]


def later(app: typer.Typer, name: str, place: str, text: str, panel: str | None = None) -> None:
    """Register a stub for a command that is imported only when called, so that help stays fast."""

    def stub() -> None:
        raise AssertionError("Commands.resolve_command puts the real one in this one's place")

    stub.place = place  # type: ignore[attr-defined]
    app.command(name, help=text, rich_help_panel=panel)(stub)


def panels() -> Literal["rich"] | None:
    """The help style: panels only in a wide terminal, because in a narrow one they cut off long names."""
    return "rich" if get_terminal_size().columns >= WIDE else None


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()  # so that a full disk is reported here, in one line
    except KeyboardInterrupt:
        print(file=sys.stderr)  # so that the shell's prompt starts on its own line
        raise typer.Exit(130) from None
    except Exception as error:
        line = _explain(error)
        if line is None or os.environ.get("AUGURY_DEBUG"):
            raise
        print(safe_text(f"error: {line}"), file=sys.stderr)
        if isinstance(error, OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would retry at exit
        raise typer.Exit(2) from None


def _explain(error: Exception) -> str | None:
    """One line for errors that the user can fix; None for bugs."""
    if isinstance(error, UsageError) and type(error).__name__ != "NoArgsIsHelpError":
        where = error.ctx.command_path if getattr(error, "ctx", None) else "augury"
        return f"{error.format_message().rstrip('.')}; see `{where} --help`."
    if isinstance(error, ModuleNotFoundError) and not (error.name or "augury").startswith("augury"):
        extra = EXTRAS.get((error.name or "").partition(".")[0], "engine")
        return f"this command needs {error.name}, which is not installed: pip install 'augury[{extra}]'"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return "the output cannot be written: no space left on the device."
    ours = isinstance(error, (ConfigError, ModelError))
    keyword = isinstance(error, TypeError) and "unexpected keyword argument" in str(error)
    return " ".join(str(error).split()) if ours or keyword else None
