"""One server over time: its identity and its readings, each judged against an earlier one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from augury.plugins.vllm.names import METRICS
from augury.tools.live.checks import Judged, judge
from augury.tools.live.expectation import expect
from augury.tools.live.past import PastFigures
from augury.tools.live.probes import send
from augury.tools.live.reading import Reading, readings
from augury.tools.live.release import release_in
from augury.tools.live.scrape import scrape
from augury.tools.live.window import window
from augury.tools.shared.given_prompts import GivenPrompt
from augury.tools.shared.http import Server, Unreadable


@dataclass(frozen=True, slots=True)
class GivenOfServer:
    """What the user states about the server."""

    method: str | None = None
    k: int | None = None
    rate: tuple[float, float] | None = None
    model: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # facts of a configuration, from the doctor
    past: Mapping[str, PastFigures] = field(default_factory=dict)  # figures of an earlier check, by model


@dataclass(slots=True)
class ServerIdentity:
    """The engine and release of the server."""

    engine: str = ""
    release: str = ""

    @property
    def vllm_release(self) -> str | None:
        """vLLM's release; None if the server is not vLLM or does not report a known one."""
        return release_in(self.release) if self.engine == "vLLM" else None

    def __str__(self) -> str:
        """The engine and release for a headline."""
        return f"{self.engine} {self.release}".strip()


class Session:
    """Scrapes one server, and remembers its identity and the probes sent."""

    def __init__(self, server: Server, asked: GivenOfServer = GivenOfServer()) -> None:
        self.server, self.asked = server, asked
        self.who = ServerIdentity()
        self.plugged = False  # whether Augury's plugin exports metrics there
        self.seconds = 0.0  # the last scrape took
        self.probes = 0  # sent since the last reading but one

    def read(self) -> dict[str, Reading]:
        """Read every model, or only the one asked for; Unreadable if there is none."""
        found = scrape(self.server)
        self.seconds = found.seconds
        if not self.who.engine:
            self.plugged = any(name.startswith(METRICS) for name in found.names)
            self.who = ServerIdentity(found.engine, self._release())
        models = readings(found)
        if self.asked.model is not None:
            if self.asked.model not in models:
                has = ", ".join(models) or "none"
                raise Unreadable("model", f"{self.server.base} has no model {self.asked.model!r}; it has {has}.")
            return {self.asked.model: models[self.asked.model]}
        if not models:
            raise Unreadable("empty", f"{self.server.base}: the metrics name no model yet; is it still starting?")
        return models

    def _release(self) -> str:
        told = self.server.json("/version")
        found = told.get("version") if isinstance(told, dict) else None
        return found[:40] if isinstance(found, str) and found.isprintable() else ""

    def judged(self, before: Mapping[str, Reading], after: Mapping[str, Reading]) -> list[Judged]:
        """The checks of each model."""
        asked, made = self.asked, []
        for model, reading in after.items():
            between = window(before.get(model), reading, self.probes)
            expected = expect(between, asked.method, asked.k, asked.rate, asked.config)
            made.append(judge(between, expected, asked.past.get(model)))
        return made

    def over(
        self, seconds: float, pieces: int = 1, meanwhile: Callable[[], object] | None = None
    ) -> list[dict[str, Reading]]:
        """Readings at the start of an interval and at the end of each piece; `meanwhile` runs after the first."""
        trail, begun = [self.read()], time.monotonic()
        if meanwhile is not None:
            meanwhile()
        for piece in range(1, pieces + 1):
            time.sleep(max(0.0, begun + seconds * piece / pieces - time.monotonic()))
            trail.append(self.read())
        return trail

    def probe(self, prompts: Sequence[GivenPrompt]) -> None:
        """Send probes within the interval being read, and count them."""
        self.probes = send(self.server, self.asked.model, prompts)
