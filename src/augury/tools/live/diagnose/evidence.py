"""All facts about a server, from its metrics, its log, its configuration and a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from augury.config.versions import Version
from augury.tools.live.checks import Judged
from augury.tools.live.configured import Configured
from augury.tools.live.diagnose.baseline import Speeds, compared, of_window
from augury.tools.live.diagnose.server_log import ServerLog
from augury.tools.live.facts import trend_facts
from augury.tools.live.reading import Reading


@dataclass(slots=True)
class Sources:
    """The user's inputs other than the server's address."""

    log: ServerLog | None = None
    config: Configured | None = None
    baseline: Speeds | None = None
    release: Version | None = None
    notes: list[str] = field(default_factory=list)


def gathered(judged: Judged | None, trail: Sequence[Reading], sources: Sources) -> dict[str, Any]:
    """All facts in one dict; metrics override the log, which overrides the configuration."""
    facts: dict[str, Any] = dict(sources.config.facts) if sources.config else {}
    trends = trend_facts(trail, judged.window) if judged is not None else {}
    facts |= trends | (sources.log.facts() if sources.log else {})  # a log covers more time than an interval
    if judged is not None:
        facts |= judged.facts
        if sources.baseline is not None:
            facts |= compared(of_window(judged.window), sources.baseline)
    if sources.release is not None:
        facts["version"] = sources.release
    if facts.get("k") and facts.get("running") is not None:
        facts["rows_now"] = round(facts["running"] * (facts["k"] + 1))
    return facts


def doubts(judged: Judged, baseline: Speeds | None) -> list[str]:
    """Remarks on what makes the comparison with a baseline uncertain."""
    if baseline is None:
        return []
    own, said = of_window(judged.window), []
    if own.tpot is None or baseline.tpot is None:
        said.append("too few requests ended, here or on the baseline, to compare their speed")
    if own.running and baseline.running and not 0.5 <= own.running / baseline.running <= 2:
        said.append(
            f"the two servers carry different loads ({own.running:.0f} and {baseline.running:.0f} requests), "
            "so their speeds say little about speculation"
        )
    return said
