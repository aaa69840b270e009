"""What a server's log tells: how it started, what it refused, and how acceptance and load changed over time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.registry import ALIASES, METHODS
from augury.plugins.vllm.names import CLASSES
from augury.tools.live.diagnose.log_args import read_args
from augury.tools.live.diagnose.log_drafts import EVERY, GENERATED, LOAD, USUAL_K, read_drafts
from augury.tools.live.diagnose.log_errors import LogErrors
from augury.tools.live.drafting import Drafting, wilson
from augury.tools.live.facts import KV_CLIMBS, rise
from augury.tools.live.reading import Reading
from augury.tools.live.release import release_numbers
from augury.tools.live.stretch import CHANGE
from augury.tools.shared.safe_text import printable

LONGEST = 200_000  # characters of a line that are read; vLLM writes its whole configuration on one
LINES_FOR_A_TREND = 6  # of load, because a gauge fluctuates
SILENT = 200.0  # tokens without a line about drafts although speculation is configured
ENOUGH_DRAFTS = 30  # at either end of a log, to say that acceptance does not fall
RELEASE = re.compile(r"(?:vLLM API server version|V1 LLM engine \(v)\s*([0-9][\w.]*)")
CONFIGURED = re.compile(r"SpeculativeConfig\(method=['\"]?(\w+)['\"]?.*?num_spec(?:ulative)?_tokens=(\d+)")
OURS = re.compile(r"serving \S+ on \w+, context \d+ tokens; (?:(\w+) drafts up to (\d+) tokens)?")
ASYNC = re.compile(r"async(?:hronous)? scheduling\b[^.]*?\b(enabled|disabled|not supported|turned off)", re.IGNORECASE)
EAGER = re.compile(r"enforce_eager=True|Enforce eager set|disabled under eager mode")
GRAPHS = re.compile(r"Graph capturing finished|Capturing CUDA graphs?")
SIZES = re.compile(r"cudagraph_capture_sizes['\"]?\s*[:=]\s*\[([\d,\s]+)\]")
OLD_RUNNER = re.compile(r"using the V1 model runner instead", re.IGNORECASE)
NEW_RUNNER = re.compile(r"using (?:the )?V2 model runner|Model Runner V2 is enabled", re.IGNORECASE)
REFUSED = re.compile(
    r"((?:ValueError|ValidationError|RuntimeError|NotImplementedError|TypeError|KeyError|AssertionError|error)\s*:.*"
    r"|\d+ validation errors? for SpeculativeConfig.*)"
)
ABOUT_DRAFTS = re.compile(r"specul|draft|eagle|\bmtp\b|medusa|n-?gram|num_spec|\bsuffix\b", re.IGNORECASE)
REQUESTS = re.compile(r"Received request|Generated response|prompt: ['\"]")
SPEAKS = re.compile(  # how a line of vLLM or Augury begins, after any prefix from a container
    r"^.{0,120}?\b(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b[: ]|^Traceback |\bvllm\b|\baugury\b"
    r"|Spec\w+ metrics|reqs, Waiting|non-default args|^(?:api_server|run_batch)\.py: error: "
)
STARTS = re.compile(r"vLLM API server version|serving \S+ on \w+, context \d+ tokens")


@dataclass(slots=True)
class ServerLog:
    """One run of a server, as read from its log."""

    release: str | None = None
    method: str | None = None
    k: int | None = None
    speculates: bool | None = None
    asynchronous: str | None = None
    eager: bool | None = None
    graph_limit: int | None = None
    runner: str | None = None
    refused: str | None = None
    model: str | None = None
    args: dict[str, Any] | None = None  # the non-default arguments, if logged
    plugged: bool = False  # Augury's plugin was loaded
    errors: LogErrors = field(default_factory=LogErrors)
    drafting: Drafting = field(default_factory=Drafting)  # of all lines together
    generated: float = 0.0  # tokens, by the logged throughput
    accepted: list[tuple[int, int]] = field(default_factory=list)  # accepted and drafted, line by line
    load: list[tuple[int, int, float]] = field(default_factory=list)  # running, waiting, KV use
    starts: int = 0
    lines: int = 0
    spoken: bool = False  # whether any line is from a server

    def facts(self) -> dict[str, Any]:
        """The log's facts, keyed by the names of fact_names.py; unknown ones are left out."""
        found: dict[str, Any] = {
            "method": self.method,
            "k": self.k,
            "speculates": self.speculates,
            "logged_async": self.asynchronous,
            "logged_eager": self.eager,
            "logged_runner": self.runner,
            "logged_refused": self.refused,
            "refused_in_log": self.refused is not None,
            "graph_limit": self.graph_limit,
            **self._trends(),
            **self._fatal(),
        }
        found["version"] = release_numbers(self.release)
        return {name: value for name, value in found.items() if value is not None}

    def _fatal(self) -> dict[str, Any]:
        """Facts about the error that ended the start or the run, and about tokens generated without any draft."""
        found: dict[str, Any] = {}
        if (error := self.errors.fatal) is not None:
            found["died_in_log" if self.errors.started else "failed_in_log"] = True
            found["log_error"] = printable(error)
        if self.speculates and not self.accepted and self.generated >= SILENT:
            found |= {"drafts": 0.0, "generated": self.generated}
        return found

    def reading(self) -> Reading | None:
        """The log's figures since the start as a scrape would show them; None if no line counts drafts."""
        if not self.drafting.drafts:
            return None
        drafting = self.drafting
        counters = {"drafts": drafting.drafts, "drafted": drafting.drafted, "accepted": drafting.accepted}
        running, waiting, usage = self.load[-1] if self.load else (None, None, None)
        gauges = {"running": running, "waiting": waiting, "kv_usage": usage}
        known = {name: float(value) for name, value in gauges.items() if value is not None}
        return Reading(self.model or "", 0.0, counters, known, accepted_at=drafting.accepted_at)

    def _trends(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if len(self.accepted) > 1:
            third = max(1, len(self.accepted) // 3)
            found |= self._trend(self._share(self.accepted[:third]), self._share(self.accepted[-third:]))
        if len(self.load) >= LINES_FOR_A_TREND:
            climbed, queued = rise([usage for _, _, usage in self.load]), rise([wait for _, wait, _ in self.load])
            found["kv_usage_rising"] = climbed is not None and climbed > KV_CLIMBS
            found["queue_growing"] = queued is not None and queued > 1
        return found

    def _share(self, counts: list[tuple[int, int]]) -> tuple[float, float]:
        """The acceptance rate over some lines and its number of drafts, since tokens of one draft are dependent."""
        accepted, drafted = (sum(column) for column in zip(*counts, strict=True))
        return (min(1.0, accepted / drafted) if drafted else 0.0), drafted / (self.k or USUAL_K)

    @staticmethod
    def _trend(first: tuple[float, float], last: tuple[float, float]) -> dict[str, Any]:
        """Whether acceptance falls or rises between both ends of the log; empty if the drafts are too few to tell."""
        (low, high), (low_now, high_now) = wilson(*first), wilson(*last)
        falls = low > high_now and last[0] < (1 - CHANGE) * first[0]
        rises = low_now > high and last[0] > (1 + CHANGE) * first[0]
        if not (falls or rises) and min(first[1], last[1]) < ENOUGH_DRAFTS:
            return {}
        found: dict[str, Any] = {"acceptance_falling": falls, "acceptance_rising": rises}
        return found | ({"rate_earlier": first[0], "rate_now": last[0]} if falls else {})

    def notes(self) -> list[str]:
        """A note if the log is too short to tell whether acceptance falls."""
        if "acceptance_falling" in self._trends() or self.errors.fatal is not None:
            return []
        number = len(self.accepted)
        lines = f"only {number} line{'s' if number > 1 else ''}" if number else "no line"
        return [f"the log has {lines} about drafts (SpecDecoding metrics): whether acceptance falls is not known"]


def read_log(path: Path) -> ServerLog:
    """The last run recorded in a log."""
    log = ServerLog()
    try:
        for line in _lines(path):
            if STARTS.search(line):
                log = ServerLog(starts=log.starts + 1, lines=log.lines, spoken=log.spoken)
            _take(log, line)
    except OSError as error:
        raise ConfigError(f"--log {path}: {error.strerror}.") from None
    if not log.lines:
        raise ConfigError(f"--log {path} is empty.")
    if not log.spoken:
        raise ConfigError(f"--log {path} holds no line of vLLM's or Augury's; is it the server's log?")
    return log


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        while line := file.readline(LONGEST):
            yield line


def _take(log: ServerLog, line: str) -> None:
    log.lines += 1
    log.spoken = log.spoken or bool(SPEAKS.search(line[:2000]))
    if " metrics: " in line and (drafting := read_drafts(line, log.k)):
        log.accepted.append((int(drafting.accepted), int(drafting.drafted)))
        log.drafting += drafting
    elif "reqs" in line and (found := LOAD.search(line)):
        log.load.append((int(found[1]), int(found[2]), float(found[3]) / 100))
        log.generated += EVERY * float(spoken[1]) if (spoken := GENERATED.search(line)) else 0.0
    elif not REQUESTS.search(line):  # such lines quote users' text, which may be anything
        _take_start(log, line)
        log.errors.take(line)


def _take_args(log: ServerLog, args: dict[str, Any]) -> None:
    log.args, config = args, args.get("speculative_config")
    model = args.get("model") or args.get("model_tag")
    log.model = printable(model) if isinstance(model, str) else None
    if not isinstance(config, dict):
        return
    method, tokens = config.get("method"), config.get("num_speculative_tokens")
    name = ALIASES.get(str(method), str(method))
    log.speculates = True
    log.method = name if name in METHODS else None
    log.k = tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else None


def _take_start(log: ServerLog, line: str) -> None:
    log.plugged = log.plugged or CLASSES in line
    if (args := read_args(line)) is not None:
        _take_args(log, args)
    if found := RELEASE.search(line):
        log.release = found[1]
    if found := CONFIGURED.search(line) or OURS.search(line):
        name = ALIASES.get(found[1], found[1])
        log.speculates = name is not None
        log.method, log.k = (name if name in METHODS else None), int(found[2]) if found[2] else None
    elif "speculative_config=None" in line:
        log.speculates = False
    if found := ASYNC.search(line):
        log.asynchronous = "on" if found[1].lower() == "enabled" else "off"
    if EAGER.search(line):
        log.eager = True
    elif GRAPHS.search(line) and log.eager is None:
        log.eager = False
    if found := SIZES.search(line):
        log.graph_limit = max((int(size) for size in found[1].split(",") if size.strip()), default=None)
    if OLD_RUNNER.search(line):
        log.runner = "old"
    elif NEW_RUNNER.search(line):
        log.runner = "new"
    if log.refused is None and (found := REFUSED.search(line)) and ABOUT_DRAFTS.search(found[1]):
        log.refused = printable(" ".join(found[1].split())[:200])
