"""Runs the suites against a server and returns a cell for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.certify.report import SuiteProgress, Unwatched
from augury.tools.certify.suite import same_text, shape
from augury.tools.certify.suite.ask import complaint
from augury.tools.certify.suite.cells import GREEN, GREY, RED, Broken, Cell, NotCertified, Subject
from augury.tools.certify.suite.pair import Pair
from augury.tools.certify.suite.rules import Covered, covering
from augury.tools.knowledge.conditions import KnownFacts
from augury.tools.shared.http import Unreadable

SUITES: dict[str, Callable[[Pair], dict[str, Any]]] = {
    "greedy": same_text.greedy,
    "replay": same_text.replay,
    "stream": shape.stream,
    "json": shape.json_mode,
    "tools": shape.tools,
    "n": shape.several,
    "logprobs": shape.logprobs,
    "long": same_text.long,
    "concurrency": same_text.concurrency,
    "preemption": same_text.preemption,
}


def chosen(names: str | None) -> list[str]:
    """The suites of --only, or all of them."""
    if not names:
        return list(SUITES)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    wrong = [name for name in wanted if name not in SUITES]
    if wrong or not wanted:
        raise ConfigError(f"--only {names}: the suites are {', '.join(SUITES)}.")
    return [name for name in SUITES if name in wanted]


def run_suites(
    pair: Pair,
    subject: Subject,
    names: Sequence[str],
    progress: SuiteProgress | None = None,
    known: KnownFacts | None = None,
) -> list[Cell]:
    """One cell per suite, in the given order."""
    progress = progress or Unwatched()
    progress.begin(str(subject), len(names))
    cells = []
    for name in names:
        cells.append(_cell(pair, subject, name, known))
        progress.step()
    return cells


def _cell(pair: Pair, subject: Subject, name: str, known: KnownFacts | None) -> Cell:
    before, begun = pair.fast.endpoint.drafts(), time.perf_counter()
    evidence: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    try:
        figures, verdict, reason = SUITES[name](pair), GREEN, ""
    except (NotCertified, Broken, Unreadable) as error:
        meant = complaint(error) if isinstance(error, Unreadable) else error
        verdict, reason = (RED if isinstance(meant, Broken) else GREY), _without_addresses(str(meant), pair)
        if isinstance(meant, Broken):
            evidence = {**meant.evidence, "plain_too": _plain_too(pair, name)}
            reason += "; the plain server breaks it too, by itself" if evidence["plain_too"] else ""
    after = pair.fast.endpoint.drafts()
    if before is not None and after is not None:
        figures = {**figures, "drafts": round(after - before)}
        if verdict == GREEN and subject.speculates and after <= before:
            verdict, reason = GREY, "the answers were right, and the server drafted nothing for them"
    rules = covering(subject, name, known) if verdict == RED else Covered()
    figures["seconds"] = round(time.perf_counter() - begun, 2)
    base = pair.plain.endpoint.base if pair.plain else None
    conditions = {"url": pair.fast.endpoint.base, "baseline_url": base, **pair.plan.record()}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    reason = reason or words(figures)
    return Cell(subject, name, verdict, reason, rules.certain, rules.possible, figures, evidence, conditions, when)


def _without_addresses(reason: str, pair: Pair) -> str:
    """The reason without the servers' addresses, so that it does not depend on where they listen."""
    reason = reason.replace(f"{pair.fast.endpoint.where}/", "/").replace(pair.fast.endpoint.where, "it")
    return reason.replace(pair.plain.endpoint.where, "the plain server") if pair.plain else reason


def _plain_too(pair: Pair, name: str) -> bool | None:
    """Whether the plain server breaks the same promise by itself, so that drafts are not the cause; None: not known."""
    if pair.plain is None:
        return None
    try:
        SUITES[name](Pair(pair.plain, None, pair.plan))
    except Broken:
        return True
    except NotCertified:
        return None
    return False


def words(figures: dict[str, Any]) -> str:
    """The figures of a green cell in a line."""
    named = {"answers": "answer", "tokens": "token", "near_ties": "near-tie", "preemptions": "preemption"}
    counted = ((figures[key], name) for key, name in named.items() if key in figures)
    return ", ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for count, name in counted)
