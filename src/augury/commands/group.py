"""How commands are found, loaded late, and how their errors are told: one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from shutil import get_terminal_size
from typing import Any, ClassVar, Literal

import typer
from typer.core import TyperGroup

from augury.config.errors import ConfigError
from augury.model.errors import ModelError

UsageError: Any = typer.BadParameter.__base__  # typer has its own copy of click, or click itself, by version
ELSEWHERE = {  # loaded when called, so that help need not read them
    "advise": "augury.commands.advise:advise",
    "bench": "augury.bench.group:bench_app",
    "certify": "augury.commands.certify:certify",
    "check": "augury.commands.check:check",
    "watch": "augury.commands.watch:watch",
    "diagnose": "augury.commands.diagnose:diagnose",
    "doctor": "augury.commands.doctor:doctor",
    "init": "augury.commands.monitor:init",  # of monitor_app
    "chat": "augury.commands.chat:chat",
    "replay": "augury.commands.replay:replay",
    "serve": "augury.commands.serve:serve",
    "tune": "augury.bench.tuning.command:tune",
    "build": "augury.commands.suffix:build",  # of suffix_app
    "show": "augury.commands.suffix:show",  # of suffix_app
}
WIDE = 140  # columns in which the panels of every command have room for its options' names
EXTRAS = {
    "matplotlib": "bench",
    "llama_cpp": "llamacpp",
    "fastapi": "serve",
    "uvicorn": "serve",
}  # everything else that may be missing is the engine's


class Commands(TyperGroup):
    """Turns what the user can mend into one line and an exit code; AUGURY_DEBUG=1 shows the traceback instead."""

    elsewhere: ClassVar[dict[str, str]] = ELSEWHERE

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the options before the command's name."""
        with _one_line():
            return super().make_context(*args, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and load it if its options live in another module."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.elsewhere:
            module, _, function = self.elsewhere[name].partition(":")
            loaded = getattr(import_module(module), function)
            if not isinstance(loaded, typer.Typer):  # a function, not a group
                alone = typer.Typer(add_completion=False, rich_markup_mode=panels())
                alone.command(name)(loaded)
                loaded = alone
            command = typer.main.get_command(loaded)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _one_line():
            return super().invoke(ctx)


def panels() -> Literal["rich"] | None:
    """How help looks: in a narrow terminal panels cut long names off; plain help does not."""
    return "rich" if get_terminal_size().columns >= WIDE else None


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the shell's prompt starts on a line of its own
        raise typer.Exit(130) from None
    except Exception as error:
        line = _explain(error)
        if line is None or os.environ.get("AUGURY_DEBUG"):
            raise
        print(f"error: {line}", file=sys.stderr)
        raise typer.Exit(2) from None


def _explain(error: Exception) -> str | None:
    """One line for errors that are the user's to mend; None for ours."""
    if isinstance(error, UsageError) and type(error).__name__ != "NoArgsIsHelpError":
        where = error.ctx.command_path if getattr(error, "ctx", None) else "augury"
        return f"{error.format_message().rstrip('.')}; see `{where} --help`."  # type: ignore[attr-defined]
    if isinstance(error, ModuleNotFoundError) and not (error.name or "augury").startswith("augury"):
        extra = EXTRAS.get((error.name or "").partition(".")[0], "engine")
        return f"this command needs {error.name}, which is not installed: pip install 'augury[{extra}]'"
    ours = isinstance(error, (ConfigError, ModelError))
    keyword = isinstance(error, TypeError) and "unexpected keyword argument" in str(error)
    return " ".join(str(error).split()) if ours or keyword else None
