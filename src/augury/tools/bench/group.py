"""`augury bench` by itself, and the commands below it."""

from __future__ import annotations

from typing import Any

import typer

from augury.config.errors import ConfigError
from augury.tools.bench.command import bench
from augury.tools.shared.group import Commands, later, panels


class BenchCommands(Commands):
    """Runs the bench of engines unless one of its commands is named, whose options are its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; the bench of engines must then not run beside it."""
        found = super().resolve_command(ctx, args)
        given = [name for name in ctx.params if "COMMANDLINE" in str(ctx.get_parameter_source(name))]
        if given:
            option = "--json" if given[0] == "as_json" else "--" + given[0].replace("_", "-")
            raise ConfigError(f"{option} stands before {found[0]!r}, whose options come behind it.")
        self.callback = None
        return found


bench_app = typer.Typer(cls=BenchCommands, add_completion=False, rich_markup_mode=panels())
bench_app.callback(invoke_without_command=True)(bench)
later(
    bench_app, "serve", "augury.tools.load.command:bench_serve",
    "Load a running OpenAI server, ours or vLLM's, at several concurrencies, and compare two of them.",
)  # fmt: skip
later(
    bench_app, "gpu", "augury.tools.bench.gpu.command:bench_gpu",
    "Measure the engine alone on random weights with a given acceptance: step by step, beside vLLM's figures.",
)  # fmt: skip
