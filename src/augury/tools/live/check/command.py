"""`augury check`: whether a live server speculates, how well, and what that is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from augury.tools.live.check.screen import show
from augury.tools.live.checks import Judged
from augury.tools.live.expectation import band as read_band
from augury.tools.live.expectation import known_method
from augury.tools.live.past import read_past
from augury.tools.live.probes import built_in
from augury.tools.live.remarks import remarks
from augury.tools.live.session import GivenOfServer, Session
from augury.tools.shared.given_prompts import GivenPrompt, gather
from augury.tools.shared.http import Server
from augury.tools.shared.terminal import errors_as, output_console, print_json, waiting


def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, or its /metrics.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between the two readings.")] = 5.0,
    method: Annotated[str | None, typer.Option(help="The method it runs; vLLM's metrics do not name it.")] = None,
    k: Annotated[
        int | None, typer.Option("--k", min=1, help="num_speculative_tokens, if the metrics do not show it.")
    ] = None,
    band: Annotated[str | None, typer.Option(metavar="LO,HI", help="The acceptance rate you expect.")] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "--speculative-config", "-sc", metavar="FILE|COMMAND", help="Where to read the method and K."
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output of an earlier `check --json` to compare with.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only this one, where several are served.")] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Send a few small greedy requests between the readings.")
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Probe with these prompts, one a line or JSONL; your own are the most telling."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="AUGURY_API_KEY", help="The server's API key, if it needs one.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check a live vLLM or Augury server. Exit code: 0 healthy, 1 a check failed, 2 it could not be read."""
    with errors_as(as_json):
        past = read_past(baseline) if baseline else {}
        probes = _probes(probe, prompts)
        asked = GivenOfServer(
            known_method(method) if method else None, k, read_band(band) if band else None, model, told(config), past
        )
        session = Session(Server(url, api_key, timeout), asked)
        judged = _judged(session, interval, probes, as_json)
    code = exit_code(judged, strict)
    if as_json:
        print_json(record(session, judged, code))
    else:
        show(output_console(), session, judged)
    raise typer.Exit(code)


def told(config: str | None) -> Mapping[str, Any]:
    """Facts about a server from the user's configuration, keyed by the names of fact_names.py."""
    if config is None:
        return {}
    from augury.tools.live.configured import configured  # the doctor, which most checks do not need

    return configured(config, None).facts


def _probes(wanted: bool, file: Path | None) -> list[GivenPrompt]:
    """The prompts to send: the operator's own, the built-in ones, or none."""
    if file is not None:
        return gather(None, file)
    return built_in() if wanted else []


def _judged(session: Session, interval: float, probes: list[GivenPrompt], quiet: bool) -> list[Judged]:
    doing = f"sending {len(probes)} probes" if probes else f"reading twice, {interval:g} s apart"
    with waiting(f"{session.server.base}: {doing}", quiet):
        trail = session.over(interval, 1, (lambda: session.probe(probes)) if probes else None)
    return session.judged(trail[0], trail[-1])


def exit_code(judged: list[Judged], strict: bool) -> int:
    """1 if a check failed (with `strict`: or warned), otherwise 0."""
    bad = ("fail", "warn") if strict else ("fail",)
    return int(any(one.verdict in bad for one in judged))


def record(session: Session, judged: list[Judged], code: int) -> dict[str, Any]:
    """The whole result as JSON."""
    return {
        "url": session.server.base,
        "engine": session.who.engine,
        "version": session.who.release,
        "checked_at": datetime.now(UTC).isoformat(timespec="minutes"),
        "read_seconds": session.seconds,
        "models": [model_record(one) for one in judged],
        "exit_code": code,
    }


def model_record(judged: Judged) -> dict[str, Any]:
    """One model's figures and checks."""
    return {
        "model": judged.window.after.model,
        "verdict": judged.verdict,
        "expected": judged.expected.record(),
        "remarks": remarks(judged),
        "checks": [check.record() for check in judged.checks],
        "window": judged.window.record(),
    }
