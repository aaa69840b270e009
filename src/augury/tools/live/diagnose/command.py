"""`augury diagnose`: why speculation on a live server is off, poor, or not worth it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from augury.config.errors import ConfigError
from augury.config.versions import Version
from augury.tools.doctor.examine import check_release
from augury.tools.live.check.command import model_record
from augury.tools.live.checks import Judged
from augury.tools.live.configured import Configured, configured
from augury.tools.live.diagnose.baseline import of_file, of_window
from augury.tools.live.diagnose.diagnosis import diagnose as ask
from augury.tools.live.diagnose.evidence import Sources, doubts, gathered
from augury.tools.live.diagnose.log_args import command_of
from augury.tools.live.diagnose.screen import Found, Heading, show
from augury.tools.live.diagnose.server_log import read_log
from augury.tools.live.reading import Reading
from augury.tools.live.release import release_in, release_numbers
from augury.tools.live.remarks import remarks
from augury.tools.live.session import GivenOfServer, Session
from augury.tools.live.window import window
from augury.tools.shared.http import Server, Unreadable
from augury.tools.shared.terminal import errors_as, output_console, print_json, waiting

UNREADABLE = 2
NOWHERE = "http://localhost"  # for a session that reads nothing
PIECES = 6  # readings of an interval, for what rises or falls in it


def diagnose(
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="The server, or its /metrics.")] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its log, with the start-up lines if possible.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "--speculative-config", "-sc", metavar="FILE|COMMAND", help="How the server was started."
        ),
    ] = None,
    baseline_url: Annotated[str | None, typer.Option(metavar="URL", help="The same model without speculation.")] = None,
    baseline_json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its figures: the output of `check --json` or `vllm bench serve`."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds to watch it.")] = 10.0,
    vllm_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Its vLLM release, if the server does not report it.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only this one, where several are served.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="AUGURY_API_KEY", help="The server's API key, if it needs one.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also what is unlikely, and why.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Find out why speculation is slow or off. Exit code: 0 nothing found, 1 something found, 2 server not readable."""
    with errors_as(as_json):
        if url is None and log is None:
            raise ConfigError("give the server's URL, or --log FILE for one that is down.")
        session = Session(Server(url or NOWHERE, api_key, timeout), GivenOfServer(model=model))
        sources = _given(log, baseline_url, baseline_json, vllm_version)
        if config is not None:
            configured(config, vllm_version)  # reports its errors before waiting for anything
        plain = Session(Server(baseline_url, api_key, timeout)) if baseline_url else None
        trail = _watched(session, plain, interval, sources, as_json, bool(log or config)) if url else []
        release = vllm_version or session.who.vllm_release or (release_in(sources.log.release) if sources.log else None)
        sources.release = release_numbers(release)
        plugged = session.plugged or (sources.log is not None and sources.log.plugged)
        said = configured(config, release, plugged=plugged) if config is not None else None
        sources.config = said or _repeated(sources, release, plugged)
    of_log = [] if trail else _logged(sources, model)  # a stopped server has left its figures there
    found = _diagnosed(session, trail or of_log, sources)
    code = int(any(one.diagnosis.wrong for one in found)) or (UNREADABLE if url and not trail else 0)
    head = Heading(session.server.base, str(session.who) or "not read") if url else Heading(str(log), _whose(sources))
    if as_json:
        print_json(_record(session if url else None, sources, found, code))
    else:
        show(output_console(), head, sources, found, verbose)
    raise typer.Exit(code)


def _given(log: Path | None, baseline_url: str | None, baseline_json: Path | None, release: str | None) -> Sources:
    """The sources other than the server, read before anything is waited for."""
    if baseline_url and baseline_json:
        raise ConfigError("--baseline-url and --baseline-json are two baselines; give one.")
    if release is not None:
        check_release(release)
    read = read_log(log) if log else None
    baseline = of_file(baseline_json) if baseline_json else None
    return Sources(read, baseline=baseline, notes=read.notes() if read else [])


def _repeated(sources: Sources, release: str | None, plugged: bool) -> Configured | None:
    """The configuration from the command that the log repeats; None if there is none or the doctor cannot read it."""
    if sources.log is None or not sources.log.args:
        return None
    try:
        return configured(command_of(sources.log.args), release, plugged=plugged)
    except ConfigError:
        return None


def _logged(sources: Sources, model: str | None) -> list[dict[str, Reading]]:
    """The log's own figures, as one reading of the server."""
    reading = sources.log.reading() if sources.log else None
    return [{reading.model: reading}] if reading and model in (None, reading.model) else []


def _whose(sources: Sources) -> str:
    release = sources.log.release if sources.log else None
    return f"vLLM {release}" if release else "a log"


def _watched(
    session: Session, plain: Session | None, interval: float, sources: Sources, quiet: bool, other_evidence: bool
) -> list[dict[str, Reading]]:
    """Readings over the interval; empty if the server cannot be read but there is a log or a configuration."""
    try:
        with waiting(f"{session.server.base}: watching it for {interval:g} s", quiet):
            first = plain.read() if plain else {}
            trail = session.over(interval, PIECES)
            last = plain.read() if plain else {}
    except Unreadable as error:
        if not other_evidence:
            raise
        sources.notes.append(f"{error} What follows is from the log and the configuration alone.")
        return []
    if last:
        name = next(iter(trail[-1])) if next(iter(trail[-1])) in last else next(iter(last))
        sources.baseline = of_window(window(first.get(name), last[name]))
    return trail


def _diagnosed(session: Session, trail: list[dict[str, Reading]], sources: Sources) -> list[Found]:
    told = {**(sources.log.facts() if sources.log else {}), **(sources.config.facts if sources.config else {})}
    session.asked = GivenOfServer(model=session.asked.model, config=told)
    words = {
        "URL": session.server.base if session.server.base != NOWHERE else "URL",
        "COMMAND": sources.config.command if sources.config else "COMMAND",
    }
    keys = sources.config.keys if sources.config else {}
    first = trail[0] if len(trail) > 1 else {}  # a log is one reading, since the start
    judged: list[Judged | None] = [*session.judged(first, trail[-1])] if trail else [None]
    found = []
    for one in judged:
        own = (
            [readings[one.window.after.model] for readings in trail if one.window.after.model in readings]
            if one
            else []
        )
        facts = gathered(one, own, sources)
        said = [*remarks(one), *doubts(one, sources.baseline)] if one else []
        found.append(Found(one, facts, ask(facts, keys, words, sources.log is not None), [*sources.notes, *said]))
    return found


def _record(session: Session | None, sources: Sources, found: list[Found], code: int) -> dict[str, Any]:
    findings = sources.config.findings if sources.config else ()
    return {
        "url": session.server.base if session else None,
        "engine": session.who.engine if session else None,
        "version": session.who.release if session else sources.log and sources.log.release,
        "configuration": [{"id": f.id, "severity": f.severity, "message": f.message, "fix": f.fix} for f in findings],
        "models": [_model(one) for one in found],
        "exit_code": code,
    }


def _plain(fact: Any) -> Any:
    """A fact as a JSON value; a release becomes its three numbers."""
    return [fact.major, fact.minor, fact.micro] if isinstance(fact, Version) else fact


def _model(found: Found) -> dict[str, Any]:
    diagnosis = found.diagnosis
    return {
        "model": found.judged.window.after.model if found.judged else None,
        "wrong": diagnosis.wrong,
        "seen": [symptom.record() for symptom in diagnosis.symptoms],
        "causes": [suspect.record() for suspect in diagnosis.suspects],
        "ruled_out": [suspect.record() for suspect in diagnosis.ruled_out],
        "not_known": [{"what": facts, "told_by": who} for who, facts in diagnosis.unknown.items()],
        "remarks": found.remarks,
        "facts": {name: _plain(value) for name, value in found.facts.items()},
        "check": model_record(found.judged) if found.judged else None,
    }
