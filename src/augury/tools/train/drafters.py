"""`augury drafter`: what is installed, and smaller ones made of larger ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from augury.config.errors import ConfigError
from augury.config.installed import installed
from augury.tools.shared.options import Json
from augury.tools.shared.terminal import output_console, print_json


def list_drafters(as_json: Json = False) -> None:
    """List the drafters that pip packages brought, each with the target it was trained for."""
    found = installed()
    if as_json:
        print_json({"drafters": [{**one._asdict(), "directory": str(one.directory)} for one in found]})
        return
    if not found:
        print("None. A package that names a directory in the entry point `augury.drafters` brings some.")
        return
    table = Table("method", "K", "target", "fingerprint", "package", box=None)
    for one in found:
        table.add_row(one.method, str(one.tokens or "-"), one.target, one.fingerprint, one.package)
    output_console().print(table)


def trim(
    drafter: Annotated[Path, typer.Argument(help="Directory of a drafter with words of its own (EAGLE-3).")],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    words: Annotated[int, typer.Option(min=16, help="How many to keep.")],
    answers: Annotated[Path, typer.Option(help="corpus.safetensors of its training: what the target says.")],
    as_json: Json = False,
) -> None:
    """Leave a drafter only the words its target says most often: a smaller file, faster guesses, nothing retrained."""
    from augury.train.corpus import Corpus
    from augury.train.trim import trim as run

    if not answers.is_file():
        raise ConfigError(f"--answers {answers}: no such file; `augury train` keeps it in --answers or --out.")
    found = run(drafter, Corpus.load(answers), words, out)
    if as_json:
        print_json(found)
        return
    print(f"{found['drafter']}: {words} of {found['before']} words, {found['covered']:.1%} of what the answers say.")
