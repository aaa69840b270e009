"""`augury knowledge`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from augury.tools.shared.options import Json

knowledge_app = typer.Typer(help="List what the doctor knows, or look up one entry.", no_args_is_help=True)


@knowledge_app.command("list")
def list_knowledge(
    kind: Annotated[str | None, typer.Option(help="pitfalls, gates, composability, methods, targets, ...")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference page of the docs.")] = False,
    as_json: Json = False,
) -> None:
    """List every entry on one line."""
    from augury.tools.knowledge.screen import list_entries

    list_entries(kind, as_json, markdown)


@knowledge_app.command("show")
def show_knowledge(
    name: Annotated[str, typer.Argument(metavar="ID", help="As the doctor prints it in brackets.")],
    as_json: Json = False,
) -> None:
    """Show one entry in full: when it applies, why, what to do, where it comes from."""
    from augury.tools.knowledge.screen import show_entry

    show_entry(name, as_json)
