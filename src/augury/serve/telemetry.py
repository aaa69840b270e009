"""OpenTelemetry: a span for each answer, with its time in queue, prefill and decode, and gen_ai.* histograms.

Names are those of the GenAI conventions and, where these have none, vLLM's (gen_ai.latency.*) or ours (augury.*). They
are sent to a collector by OTLP over HTTP, in JSON; a collector that is slow or gone costs no answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from typing import Any
from urllib.parse import unquote, urlsplit

from augury.config.errors import ConfigError
from augury.observe.otlp import SERVER, Distribution, Span, metrics, traces
from augury.serve.jobs import Job
from augury.serve.origin import Origin

logger = logging.getLogger("augury")
EVERY = 1.0  # seconds between two exports
WAITING = 4096  # spans that may wait for the next export; more are dropped, and the log says so
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
EACH = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = tuple(4**power for power in range(14))


class Telemetry:
    """Makes spans and histograms of answers that have ended, and sends them."""

    def __init__(self, endpoint: str, version: str) -> None:
        self._traces, self._metrics = addresses(endpoint)
        self._service, self._version = os.environ.get("OTEL_SERVICE_NAME", "augury"), version
        self._headers = _headers(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
        self._begun = time.time_ns()
        self._spans: list[Span] = []
        self._dropped = 0
        self._told = False  # whether the log says that the collector does not answer
        self.speculation: dict[str, Any] = {}  # attributes of every span
        self._duration = Distribution("gen_ai.server.request.duration", "s", SECONDS)
        self._first = Distribution("gen_ai.server.time_to_first_token", "s", FIRST)
        self._each = Distribution("gen_ai.server.time_per_output_token", "s", EACH)
        self._usage = Distribution("gen_ai.client.token.usage", "{token}", TOKENS)

    def ended(self, job: Job, index: int, whole: float, first: float | None, end: dict[str, Any]) -> None:
        """Record an answer that has ended after `whole` seconds, `first` of them before its first token."""
        asked = job.origin
        if asked is None:
            return
        told = {"gen_ai.operation.name": asked.operation, "gen_ai.request.model": asked.model}
        self._duration.observe(whole, told)
        self._usage.observe(job.prompt_tokens, {**told, "gen_ai.token.type": "input"})
        self._usage.observe(job.generated[index], {**told, "gen_ai.token.type": "output"})
        if first is not None:
            self._first.observe(first, told)
        if end["decode"] is not None and job.generated[index] > 1:
            self._each.observe(end["decode"] / (job.generated[index] - 1), told)
        if not asked.sampled:
            return
        if len(self._spans) + 4 > WAITING:
            self._dropped += 1
            return
        self._spans += self._answer(job, index, whole, first, end, asked)

    def _answer(
        self, job: Job, index: int, whole: float, first: float | None, end: dict[str, Any], asked: Origin
    ) -> list[Span]:
        """The span of an answer, and those of its stages."""
        now = time.time_ns()
        begin, own = now - int(whole * 1e9), secrets.token_hex(8)
        drafts = end.get("speculative_decoding") or {}
        told = {
            "gen_ai.operation.name": asked.operation,
            "gen_ai.provider.name": "augury",
            "gen_ai.request.model": asked.model,
            "gen_ai.response.model": asked.model,
            "gen_ai.request.max_tokens": job.max_tokens,
            "gen_ai.request.choice.count": job.n if job.n > 1 else None,
            "gen_ai.usage.input_tokens": job.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": end["cached"],
            "gen_ai.usage.output_tokens": job.generated[index],
            "gen_ai.response.finish_reasons": [end["reason"]],
            "gen_ai.latency.time_in_queue": end["queued"],
            "gen_ai.latency.time_to_first_token": first,
            "gen_ai.latency.e2e": whole,
            **self.speculation,
            "augury.speculative.num_drafts": drafts.get("num_spec_steps"),
            "augury.speculative.num_draft_tokens": drafts.get("num_draft_tokens"),
            "augury.speculative.num_accepted_tokens": drafts.get("num_accepted_draft_tokens"),
            "augury.speculative.mean_acceptance_length": drafts.get("mean_acceptance_length"),
        }
        error = str(end["stop"]) if end["reason"] == "error" else None
        spans = [
            Span(asked.trace, f"{asked.operation} {asked.model}", own, asked.parent, begin, now, told, SERVER, error)
        ]
        last = now
        for name in ("decode", "prefill", "queued"):  # backwards from the end: the lengths are the engine's
            if end[name] is not None:
                since = max(begin, last - int(end[name] * 1e9))
                stage = "queue" if name == "queued" else name
                spans.append(Span(asked.trace, stage, secrets.token_hex(8), own, since, last))
                last = since
        return spans

    async def send_forever(self) -> None:
        """Send what has been recorded, every second."""
        while True:
            await asyncio.sleep(EVERY)
            await self.send()

    async def send(self) -> None:
        """Send what has been recorded; a collector that does not answer is logged once, and what it missed is lost."""
        import httpx

        spans, self._spans = self._spans, []
        if self._dropped:
            logger.warning("%d answers were left out of the traces: too many ended in a second", self._dropped)
            self._dropped = 0
        if not spans:
            return
        found = [
            one.encoded(self._begun, time.time_ns()) for one in (self._duration, self._first, self._each, self._usage)
        ]
        try:
            async with httpx.AsyncClient(headers=self._headers, timeout=5.0) as client:
                (await client.post(self._traces, json=traces(self._service, self._version, spans))).raise_for_status()
                if self._metrics:
                    body = metrics(self._service, self._version, found)
                    (await client.post(self._metrics, json=body)).raise_for_status()
        except (httpx.HTTPError, OSError) as error:
            if not self._told:
                logger.warning("traces do not reach %s: %s", self._traces, str(error) or type(error).__name__)
            self._told = True
        else:
            self._told = False


def addresses(endpoint: str) -> tuple[str, str | None]:
    """URLs for traces and metrics: a bare address gets OTLP's paths; paths other than OTLP's get no metrics."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        why = "OTLP goes over HTTP here, in JSON; write for example http://localhost:4318"
        raise ConfigError(f"--otlp-traces-endpoint {endpoint}: {why}.")
    base = endpoint.rstrip("/")
    if not parts.path.strip("/"):
        return f"{base}/v1/traces", f"{base}/v1/metrics"
    return base, f"{base.removesuffix('/v1/traces')}/v1/metrics" if base.endswith("/v1/traces") else None


def _headers(text: str) -> dict[str, str]:
    """Parse OpenTelemetry's own variable: key=value pairs, separated by commas."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
