"""`augury drafter`: list the installed drafters, trim their vocabularies, and export them to other formats."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from augury.config.errors import ConfigError
from augury.config.files import make_drafter_directory
from augury.config.installed import installed
from augury.tools.shared.options import Json
from augury.tools.shared.terminal import output_console, print_json


def list_drafters(as_json: Json = False) -> None:
    """List the drafters from installed pip packages, each with its target."""
    found = installed()
    if as_json:
        print_json({"drafters": [{**one._asdict(), "directory": str(one.directory)} for one in found]})
        return
    if not found:
        print("None installed. Packages provide drafters through the entry point `augury.drafters`.")
        return
    console = output_console()
    for (target, mark, package), some in groupby(found, lambda one: (one.target, one.fingerprint, one.package)):
        console.print(f"{package}, for {target} ({mark})", soft_wrap=True, markup=False)
        table = Table("  method", "K", box=None)
        for one in some:
            asked = ", ".join([one.method, *(key for key, value in one.settings.items() if value is True)])
            table.add_row(f"  {asked}", str(one.tokens or "-"))
        console.print(table)


def trim(
    drafter: Annotated[
        Path, typer.Argument(help="Directory of a drafter with its own vocabulary (EAGLE-3, MLP speculator).")
    ],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    words: Annotated[int, typer.Option(min=16, help="Number of tokens to keep.")],
    answers: Annotated[Path, typer.Option(help="corpus.safetensors of its training: the target's answers.")],
    as_json: Json = False,
) -> None:
    """Cut a drafter's vocabulary to its target's most frequent tokens: smaller and faster, without retraining."""
    from augury.train.corpus import Corpus
    from augury.train.trim import trim as run

    if not answers.is_file():
        raise ConfigError(f"--answers {answers}: no such file; `augury train` keeps it in --answers or --out.")
    make_drafter_directory(out, "--out")
    found = run(drafter, Corpus.load(answers), words, out)
    if as_json:
        print_json(found)
        return
    print(f"{found['drafter']}: {words} of {found['before']} words, {found['covered']:.1%} of the answers' tokens.")


def export(
    drafter: Annotated[Path, typer.Argument(help="Directory of a drafter: EAGLE-3, P-EAGLE or DFlash.")],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    verifier: Annotated[str, typer.Option(help="The target's name, as servers load it.")],
    k: Annotated[int, typer.Option("--k", min=1, help="Default number of drafted tokens.")] = 3,
    as_json: Json = False,
) -> None:
    """Write a drafter in the format of the speculators library, which names its target."""
    from augury.train.speculators import as_speculator

    make_drafter_directory(out, "--out")
    kind = as_speculator(drafter, verifier, k, out)
    if as_json:
        print_json({"drafter": str(out), "speculators_model_type": kind, "verifier": verifier})
        return
    print(f"{out}: a speculator of type {kind} for {verifier}.")
