"""`augury config`: the commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from augury.config.errors import ConfigError
from augury.tools.shared.options import Json
from augury.tools.shared.terminal import output_console, print_json

config_app = typer.Typer(help="Check, list and explain speculative_config.", no_args_is_help=True)


@config_app.command("check")
def check_config(
    text: Annotated[str | None, typer.Argument(metavar="[JSON]", help="The configuration.")] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option("--speculative-config", "-sc", metavar="JSON", help="The same; -sc.key value works too."),
    ] = None,
    spec_method: Annotated[str | None, typer.Option(help="Its 'method'.")] = None,
    spec_model: Annotated[str | None, typer.Option(help="Its 'model'.")] = None,
    spec_tokens: Annotated[int | None, typer.Option(help="Its 'num_speculative_tokens'.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file with `speculative-config:` and `model:`.")] = None,
    target: Annotated[str | None, typer.Option(help="The target's directory: only its config.json is read.")] = None,
    as_of: Annotated[str | None, typer.Option(metavar="VERSION", help="What this vLLM release would say.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(min=1, help="The target's.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="The target's.")] = None,
    as_json: Json = False,
) -> None:
    """Resolve a configuration without loading anything. Exit code: 0 fine, 1 works with remarks, 2 refused."""
    from augury.tools.config.check import REFUSED, CheckedConfig, CheckOptions, as_record, ask, exit_code, judge
    from augury.tools.config.screen import show

    shortcuts = {"spec_method": spec_method, "spec_model": spec_model, "spec_tokens": spec_tokens}
    asked = CheckOptions(
        text, speculative_config, shortcuts, config, target, as_of, tensor_parallel_size, max_model_len
    )
    try:
        question = ask(asked)
    except ConfigError as error:
        if not as_json:
            raise
        print_json({**as_record(CheckedConfig(None, str(error))), "exit_code": REFUSED})
        raise typer.Exit(REFUSED) from None
    answer = judge(question)
    code = exit_code(answer, question.as_of)
    if as_json:
        print_json({"question": question._asdict(), **as_record(answer, question.as_of), "exit_code": code})
    else:
        show(output_console(), question, answer, code)
    raise typer.Exit(code)


@config_app.command("keys")
def list_keys(
    method: Annotated[str | None, typer.Option(help="Only what this method reads.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference page of the docs.")] = False,
    as_json: Json = False,
) -> None:
    """Every key: what it takes, who reads it, in which vLLM releases it is valid."""
    from augury.tools.config.keys import keys

    keys(method, as_json, markdown)


@config_app.command("explain")
def explain_profiles(
    profile: Annotated[str | None, typer.Argument(help="One of them; all if left out.")] = None, as_json: Json = False
) -> None:
    """Four starting points, resolved: low latency, high throughput, balanced, agentic."""
    from augury.tools.config.check import as_record, resolved_profiles
    from augury.tools.config.screen import show_profiles

    answers = resolved_profiles(profile)
    if as_json:
        records = [{"name": p.name, "when": p.when, "given": p.config, **as_record(a)} for p, a in answers]
        print_json({"profiles": records})
    else:
        show_profiles(output_console(), answers)
