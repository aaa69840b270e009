"""`augury tune`: finds the best method, K and tree for a model and prompts by a race, locally or on a server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from augury.config.errors import ConfigError
from augury.config.surfaces import from_json
from augury.methods.registry import LOOK_UPS
from augury.tools.shared.loading import with_installed
from augury.tools.shared.pulse import time_text
from augury.tools.tune.choose import UNSURE, choose
from augury.tools.tune.families import families_of
from augury.tools.tune.prompts import conversations
from augury.tools.tune.run import TunePlan, confirm, race_all, split


def tune(
    url: Annotated[str, typer.Argument(help="A running server; without it, --model on this machine.")] = "",
    model: Annotated[str, typer.Option(help="'default', a directory, a .gguf file or a Hugging Face id.")] = "default",
    prompts: Annotated[str, typer.Option(help="Prompt sets, comma-separated: chat, edit, or files.")] = "chat,edit",
    methods: Annotated[str, typer.Option(help=f"Methods without a drafter to try: {', '.join(LOOK_UPS)}.")] = "",
    speculative_config: Annotated[
        list[str] | None,
        typer.Option(
            "--speculative-config", "-sc", help="A configuration to try, as JSON; its K is the largest tried."
        ),
    ] = None,
    tokens: Annotated[str, typer.Option(help="K of chains to try, comma-separated.")] = "",
    tree: Annotated[bool, typer.Option("--tree", help="Try trees too, where a drafter can grow them.")] = False,
    concurrency: Annotated[str, typer.Option(help="Concurrent requests, comma-separated.")] = "1,4",
    max_tokens: Annotated[int, typer.Option(min=8, help="New tokens for each prompt, at most.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy. All configurations use the same seeds.")] = 0.0,
    minutes: Annotated[
        float,
        typer.Option(min=0, help="Time limit of the race, without loading, the first round and the final comparison."),
    ] = 10,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Confidence of the intervals, over all interim looks together.")
    ] = 0.95,
    canary_url: Annotated[str, typer.Option(help="A second server to compare with URL.")] = "",
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the servers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the winning speculative_config (JSON) here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report with pictures (HTML) here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Find the best method, K and tree in a race that ends once the winner is certain; write its configuration."""
    from augury.tools.tune.runners import live_runner, local_runner
    from augury.tools.tune.screen import report_of, show

    _check_paths(out, report)
    written = [from_json(text) for text in speculative_config or ()]
    loads, ks = _numbers("--concurrency", concurrency), _numbers("--tokens", tokens) if tokens else []
    asked = conversations(_words(prompts))
    params = {"temperature": temperature, "max_tokens": max_tokens}
    plan = TunePlan(loads, minutes, confidence, params, *split(len(asked)))
    begun = time.perf_counter()
    if url:
        if written or methods or tree:
            raise ConfigError("-sc, --methods and --tree are for --model on this machine; a server has its own method.")
        runner, families, conditions = live_runner(url, canary_url, api_key, asked, params, ks)
        left_out: dict[str, str] = {}
    else:
        if canary_url:
            raise ConfigError("--canary-url needs the URL of the server that it is compared with.")
        families = families_of(_words(methods), [with_installed(spec, model) for spec in written], ks, tree)
        runner, families, left_out, conditions = local_runner(model, families, plan, asked)
    print(_forecast(plan, sum(len(family.arms) for family in families)), file=sys.stderr, flush=True)
    races, stopped = race_all(plan, families, runner)
    choice = choose(races, families, conditions["baseline"])
    confirmed = {} if url or stopped else confirm(choice, plan, runner)
    conditions |= _conditions(plan, prompts, time.perf_counter() - begun) | {"stopped": stopped}
    found = report_of(races, families, choice, confirmed, left_out, conditions)
    if as_json:
        from augury.tools.shared.terminal import print_json

        print_json(found)
    else:
        show(found)
    _write(found, out, report)  # last, so that a full disk does not lose the results
    raise typer.Exit(130 if stopped else int(choice.verdict == UNSURE))


def _check_paths(*paths: Path | None) -> None:
    """Refuse output paths that cannot be written, before anything is measured."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no directory {path.parent}.")
        if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            raise ConfigError(f"{path} cannot be written; name a file in a directory of yours.")


def _forecast(plan: TunePlan, arms: int) -> str:
    """The maximum duration, announced before the race."""
    loads = ", ".join(map(str, plan.loads))
    limit = time_text(60 * plan.minutes)
    besides = "besides the first round and the final comparison"
    return f"racing {arms} configurations at {loads} at once: at most {limit}, {besides}"


def _conditions(plan: TunePlan, prompts: str, seconds: float) -> dict[str, Any]:
    return {
        "prompts": prompts,
        "racing": len(plan.racing),
        "held_out": len(plan.held_out),
        "confidence": plan.confidence,
        **plan.params,
        "seconds": round(seconds, 1),
    }


def _write(found: dict[str, Any], out: Path | None, report: Path | None) -> None:
    from augury.tools.tune.page import tuning_page

    jobs: list[tuple[Path | None, Callable[[], str]]] = [
        (out, lambda: json.dumps(found["choice"]["speculative_config"]) + "\n"),
        (report, lambda: tuning_page(found)),
    ]
    for path, text in jobs:
        if path is not None and not (path == out and found["choice"]["verdict"] == UNSURE):
            try:
                path.write_text(text(), encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from None
            print(f"wrote {path}", file=sys.stderr)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(flag: str, text: str) -> list[int]:
    try:
        numbers = sorted({int(word) for word in _words(text)})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"{flag} {text}: write whole numbers from 1 up with commas, for example 1,4,16.")
    return numbers
