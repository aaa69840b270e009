"""The webhook's endpoints: /validate, /healthz (also /readyz) and /metrics."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from augury.config.errors import ConfigError
from augury.tools.doctor.webhook.counts import TYPE, WebhookMetrics
from augury.tools.doctor.webhook.judge import AdmissionCase, ToldFinding
from augury.tools.doctor.webhook.review import AdmissionRequest, FailOn, allowed, answer, read_review, refused
from augury.tools.doctor.webhook.workers import NotJudged, Workers

FailurePolicy = Literal["ignore", "fail"]
QUEUE = 32  # reviews in progress per process; a usual one takes hundredths of a second
BUSY = "too many reviews at once; try again"


class HttpReply(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


@dataclass
class Webhook:
    """The webhook's workers, what it refuses, its metrics and the number of reviews in progress."""

    workers: Workers
    fail_on: FailOn = "error"
    failure_policy: FailurePolicy = "ignore"
    release: str | None = None
    skipped: Sequence[str] = ()  # namespaces
    counts: WebhookMetrics = field(default_factory=WebhookMetrics)
    in_hand: int = 0

    def __post_init__(self) -> None:
        """Create as many threads as processes, which bounds the number of reviews parsed in memory at once."""
        self.threads = ThreadPoolExecutor(self.workers.number, "review")

    async def reply(self, method: str, path: str, body: bytes) -> HttpReply:
        """Answer one request."""
        place = path.partition("?")[0]
        if place == "/validate":
            # The path's query is Kubernetes' own (`?timeout=10s`).
            return await self._answered(body) if method == "POST" else _text(405, "POST only")
        if method not in ("GET", "HEAD"):
            return _text(405, "GET only")
        if place in ("/healthz", "/readyz"):
            return _text(200, "ok")
        return HttpReply(200, self.counts.text(), TYPE) if place == "/metrics" else _text(404, "see /validate")

    async def _answered(self, body: bytes) -> HttpReply:
        """Answer a review within the time limit; 503 if its turn does not come in time or too many are waiting."""
        if self.in_hand >= QUEUE * self.workers.number:
            return _text(503, BUSY)
        self.in_hand += 1
        until = time.monotonic() + self.workers.seconds
        review = self.threads.submit(self.validated, body, until)
        del body  # a cancelled review's body is then freed with its place in the queue
        answer = asyncio.ensure_future(asyncio.wrap_future(review))
        try:
            await asyncio.wait({answer}, timeout=self.workers.seconds)
            if not answer.done() and review.cancel():  # still queued
                return _text(503, BUSY)
            return await answer
        except Exception as error:  # every request gets an answer; the API server then follows its failurePolicy
            print(f"a review failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return _text(500, type(error).__name__)
        finally:
            self.in_hand -= 1

    def validated(self, body: bytes, until: float | None = None) -> HttpReply:
        """The answer to a review; 400 if the body is not a review."""
        start = time.monotonic()
        try:
            request = read_review(body)
        except ConfigError as error:
            return _text(400, str(error))
        said, word, told = self._judged(request, until)
        self.counts.count(word, request.kind, told, time.monotonic() - start)
        return HttpReply(200, json.dumps(said).encode(), "application/json")

    def _judged(self, request: AdmissionRequest, until: float | None) -> tuple[dict[str, Any], str, list[ToldFinding]]:
        if not request.judged or request.namespace in self.skipped:
            return allowed(request.uid), "skipped", []
        try:
            told = self.workers.judge(_case(request, self.release), until)
        except (NotJudged, RecursionError) as error:
            said = "it is nested too deeply." if isinstance(error, RecursionError) else error
            why = f"augury doctor could not check this: {said}"
            if self.failure_policy == "fail":
                return refused(request.uid, why), "failed", []
            return allowed(request.uid, why), "not checked", []
        review = answer(request.uid, told, self.fail_on)
        return review, "allowed" if review["response"]["allowed"] else "refused", told


def _case(request: AdmissionRequest, release: str | None) -> AdmissionCase:
    """The case for a worker process, as JSON text, which can be sent whatever its shape."""
    old = request.operation == "UPDATE" and isinstance(request.old, dict)
    return AdmissionCase(json.dumps(request.new), json.dumps(request.old) if old else None, release)


def _text(status: int, text: str) -> HttpReply:
    return HttpReply(status, f"{text}\n".encode())
