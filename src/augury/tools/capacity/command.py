"""`augury capacity`: from a trace and a target latency to replicas and GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from augury.config.errors import ConfigError
from augury.tools.shared.options import Json

if TYPE_CHECKING:
    from augury.tools.capacity.model import Load
    from augury.tools.capacity.pace import Pace
    from augury.tools.capacity.plan import CapacityPlan
    from augury.tools.capacity.sessions import SessionShape


def capacity(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Recorded conversations, as for `replay`.")],
    target: Annotated[str, typer.Option(help="A directory, a config.json, 'default', or a name such as llama-3.1-8b.")],
    rate: Annotated[float, typer.Option(min=0.001, help="Requests per second in total.")],
    ttft: Annotated[float, typer.Option(min=0.001, help="Target time to first token, in seconds.")] = 1.0,
    tpot: Annotated[
        float, typer.Option(min=0.01, help="Target time per output token after it, in milliseconds.")
    ] = 50.0,
    percentile: Annotated[
        float, typer.Option(min=1, max=99.9, help="Percentage of requests that must meet both targets.")
    ] = 95.0,
    gpu: Annotated[str | None, typer.Option(help="Costs by a roofline of this GPU, such as H200.")] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="GPUs a replica is split over.")] = 1,
    cost_curve: Annotated[Path | None, typer.Option(help="Costs as `augury bench --cost-curve` measured them.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Speculate as this speculation_profile.json says; without it, not at all.")
    ] = None,
    think: Annotated[float, typer.Option(min=0, help="Seconds from an answer to the session's next turn.")] = 5.0,
    max_num_seqs: Annotated[int, typer.Option(min=1, max=1024, help="Concurrent requests on a replica.")] = 256,
    max_replicas: Annotated[int, typer.Option(min=1, max=1000, help="Largest number of replicas to try.")] = 1000,
    tokenizer: Annotated[str, typer.Option(help="'default', a directory, a hub id, bytes, words.")] = "default",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many conversations.")] = None,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG) here.")] = None,
) -> None:
    """Predict how many replicas and GPUs a trace needs for a target latency. Exit code: 1 if no number is enough."""
    from augury.tools.advise.command import cost_of, target_of
    from augury.tools.capacity.model import Load
    from augury.tools.capacity.pace import pace_of
    from augury.tools.capacity.screen import as_record, show
    from augury.tools.shared.profile import read_profile
    from augury.tools.shared.terminal import output_console, print_json

    if plot is not None and not plot.parent.is_dir():
        raise ConfigError(f"--plot {plot}: there is no directory {plot.parent}.")
    facts, shape = target_of(target, as_json, cost_curve is not None)
    cost = cost_of(gpu, tp, cost_curve, shape, facts)
    if cost.cannot is not None:
        raise ConfigError(f"{facts.name}: {cost.cannot}.")
    drafter = read_profile(profile) if profile is not None else None
    sessions = _sessions(traces, tokenizer, limit)
    pace = pace_of(cost, shape, sessions, max_num_seqs, drafter)
    load = Load(rate, think, percentile / 100, ttft, tpot / 1e3)
    found = _searched(sessions, pace, load, max_replicas, as_json)
    gpus = 0 if gpu is None else tp
    said = _conditions(traces, sessions, f"{facts.name}, {cost.name}", think, str(profile.name) if profile else None)
    if as_json:
        print_json(as_record(found, gpus, said))
    else:
        show(output_console(), found, gpus, said)
    if plot is not None:
        _draw(found, said, plot)
    if found.best is None:
        raise typer.Exit(1)


def _searched(sessions: list[SessionShape], pace: Pace, load: Load, most: int, quiet: bool) -> CapacityPlan:
    """Run the search, with a line that says what is being simulated."""
    from augury.tools.capacity.plan import plan
    from augury.tools.shared.pulse import pulse
    from augury.tools.shared.terminal import saying

    told = ["reading the trace"]
    with saying(quiet) as say, pulse(lambda: told[-1], quiet=sys.stderr.isatty()):

        def heard(words: str) -> None:
            told.append(words)
            say(words)

        return plan(sessions, pace, load, most, heard)


def _draw(found: CapacityPlan, said: str, path: Path) -> None:
    from augury.tools.capacity.picture import draw

    draw(found, said, path)
    print(f"wrote {path}", file=sys.stderr)


def _sessions(traces: list[Path], tokenizer: str, limit: int | None) -> list[SessionShape]:
    from augury.tools.capacity.sessions import sessions_of
    from augury.tools.replay.screen import progress, warn
    from augury.tools.replay.tokens import encoder, scripts
    from augury.tools.replay.traces import TraceReader

    reader = TraceReader(traces, None, limit)
    with progress(reader):
        found = sessions_of(scripts(reader, encoder(tokenizer)))
    warn(reader)
    if not found:
        raise ConfigError(f"{', '.join(map(str, traces))}: no answers; a plan needs the model's answers.")
    return found


def _conditions(traces: list[Path], sessions: list[SessionShape], costs: str, think: float, drafts: str | None) -> str:
    turns = [turn for session in sessions for turn in session.turns]
    prompt, answer = (sum(turn[part] for turn in turns) / len(turns) for part in (0, 1))
    shared = sum(session.head for session in sessions) / len(sessions)
    how = f"drafts by {drafts}" if drafts else "no speculation"
    return (
        f"{', '.join(path.name for path in traces[:4])}: {len(sessions)} sessions, {len(turns)} requests of "
        f"{prompt:.0f} prompt and {answer:.0f} answer tokens on average, {shared:.0f} tokens of the first prompt "
        f"shared; {think:g} s between turns; {costs}; {how}."
    )
