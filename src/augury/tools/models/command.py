"""`augury models`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from augury.tools.shared.options import Json

models_app = typer.Typer(help="List, fetch, inspect, check and delete models.", invoke_without_command=True)
Name = Annotated[str, typer.Argument(help="'default', or a name that `augury models` lists.")]


@models_app.callback()
def models(ctx: typer.Context, as_json: Json = False) -> None:
    """List, fetch, inspect, check and delete models."""
    if ctx.invoked_subcommand is None:
        list_models(as_json)


@models_app.command("list")
def list_models(as_json: Json = False) -> None:
    """List what is in the cache."""
    from augury.tools.models.screen import list_models as run

    run(as_json)


@models_app.command()
def pull(
    name: Annotated[str, typer.Argument(help="'default', a hub id, or a .gguf file to convert.")], as_json: Json = False
) -> None:
    """Fetch a model and make it ready to run."""
    from augury.tools.models.screen import pull as run

    run(name, as_json)


@models_app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show what is known about a model, without loading it."""
    from augury.tools.models.screen import show as run

    run(name, as_json)


@models_app.command()
def remove(name: Name, as_json: Json = False) -> None:
    """Delete a model from the cache."""
    from augury.tools.models.screen import remove as run

    run(name, as_json)


@models_app.command()
def verify(name: Name, as_json: Json = False) -> None:
    """Read a model's files and check them against their checksums."""
    from augury.tools.models.screen import verify as run

    run(name, as_json)
