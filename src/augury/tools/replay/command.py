"""`augury replay`: what model-free speculation would have done on recorded conversations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from augury.config.errors import ConfigError
from augury.methods.registry import LOOK_UPS

if TYPE_CHECKING:
    from augury.tools.replay.figures import Summary
    from augury.tools.replay.replay import Replay
    from augury.tools.replay.tokens import Encoder
    from augury.tools.replay.traces import TraceReader

Traces = Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Recorded conversations; formats mix freely.")]
TokenizerOption = Annotated[
    str, typer.Option(help="'default' (the embedded model's), a directory with tokenizer.json, a hub id, bytes, words.")
]
Form = Literal["text", "json", "aiconfigurator", "dynamo"]
TenantField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Records with different values in this field share no cache.")
]


def replay(
    traces: Traces,
    method: Annotated[list[str] | None, typer.Option(help=f"{', '.join(LOOK_UPS)}; may be repeated.")] = None,
    speculative_config: Annotated[
        list[str] | None,
        typer.Option("--speculative-config", "-sc", metavar="JSON", help="A configuration, or a list of them."),
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V1,V2", help="Try all of these values; may be repeated.")
    ] = None,
    tokenizer: TokenizerOption = "default",
    max_model_len: Annotated[int | None, typer.Option(min=2, help="Longest prompt and answer together.")] = None,
    tenant_field: TenantField = None,
    preload: Annotated[Path | None, typer.Option(help="Start suffix from this file of `augury suffix build`.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many conversations.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    form: Annotated[
        Form, typer.Option("--format", help="What is printed; the last two: the best row, for that planner.")
    ] = "text",
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG) here.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Write the best row's speculation_profile.json here.")] = None,
) -> None:
    """Replay recorded conversations through look-up drafters: what would have been accepted; no model, no GPU."""
    from augury.tools.replay.profile import conditions_of
    from augury.tools.replay.replay import Replay, expand, read_configs, read_grid
    from augury.tools.replay.tokens import encoder
    from augury.tools.replay.traces import TraceReader

    for option, file in (("--plot", plot), ("--profile", profile)):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{option} {file}: there is no directory {file.parent}.")
    configs, refused = expand(read_configs(method or [], speculative_config or []), read_grid(grid or []))
    reader = TraceReader(traces, tenant_field, limit)
    tokens = encoder(tokenizer)
    running = Replay(configs, max_model_len)
    if preload is not None:
        _preload(running, preload)
    walk(running, reader, tokens)
    conditions = conditions_of(reader, running.log, tokens.name, max_model_len)
    summaries, best = _report(running, reader, conditions, refused, "json" if as_json else form)
    if profile is not None:
        from augury.tools.shared.profile import write_profile

        write_profile(best, profile)
        print(f"wrote {profile}", file=sys.stderr)
    if plot is not None:
        from augury.tools.replay.plot import plot as draw
        from augury.tools.replay.screen import conditions_line

        draw(summaries, conditions_line(conditions), plot)
        print(f"wrote {plot}", file=sys.stderr)


def walk(running: Replay, reader: TraceReader, encoder: Encoder) -> None:
    """Read, tokenise and replay everything, with a progress bar."""
    from augury.tools.replay.prefix import decoded_once
    from augury.tools.replay.screen import progress
    from augury.tools.replay.tokens import scripts

    with progress(reader) as tick:
        for script in decoded_once(scripts(reader, encoder)):
            running.feed(script)
            tick(running.log.tokens)
    if not running.log.turns:
        prompts = f"{running.log.conversations} prompts and no response" if running.log.conversations else "no records"
        raise ConfigError(
            f"nothing to replay: {prompts} in {', '.join(str(path) for path in reader.paths)}; a vLLM server logs "
            "responses only with --enable-log-outputs (`augury suffix build` can still index prompts)."
        )


def _preload(running: Replay, file: Path) -> None:
    from augury.tools.replay.drafters import SuffixWalker

    walkers = [one.walker for one in running.contenders if isinstance(one.walker, SuffixWalker)]
    if not walkers:
        raise ConfigError(f"--preload {file}: none of the methods replayed is suffix.")
    responses = load_cache(file).responses()
    for walker in walkers:
        walker.preload(responses)


def load_cache(file: Path) -> Any:
    """A saved suffix cache; a ConfigError if it cannot be read."""
    from augury.index.store import SuffixFileError, load

    try:
        return load(file, max_requests=-1)
    except SuffixFileError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}.") from None


def _report(
    running: Replay, reader: TraceReader, conditions: dict[str, Any], refused: list[str], form: Form
) -> tuple[list[Summary], dict[str, Any]]:
    """Print the results; returns the figures of every configuration and the profile of the best."""
    from augury.tools.replay.figures import best_of, summarise
    from augury.tools.replay.profile import profile_of
    from augury.tools.replay.screen import show, warn
    from augury.tools.shared.terminal import output_console, print_json

    warn(reader)
    summaries = [summarise(contender, running.log) for contender in running.contenders]
    best = best_of(summaries)
    pairs = zip(summaries, running.contenders, strict=True)
    profiles = [profile_of(summary, contender.config.to_dict(), conditions) for summary, contender in pairs]
    if form in ("aiconfigurator", "dynamo"):
        from augury.tools.replay.planners import for_planner

        print(for_planner(summaries[best], form), end="")
    elif form == "json":
        print_json({"best": best, "profiles": profiles, "torn": reader.torn, "refused": refused})
    else:
        show(output_console(), summaries, best, conditions, running.log)
        for line in refused:
            print(f"left out of the grid: {line}", file=sys.stderr)
    return summaries, profiles[best]
