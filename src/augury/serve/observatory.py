"""Everything that watches the engine: Prometheus, the log lines, the page's figures."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

from prometheus_client import CollectorRegistry

from augury.observe.logline import EngineLogging, SpecDecodingLogging
from augury.observe.prometheus import EngineProm, SpecDecodingProm, SpeculationProm
from augury.observe.prometheus_adapters import AdapterProm, LoraInfoProm
from augury.observe.prometheus_probes import ProbeProm
from augury.observe.prometheus_requests import Finished, RequestProm
from augury.observe.spec_decoding import SpecDecodingStats
from augury.observe.stats import PROBE
from augury.observe.steps import Step
from augury.serve.jobs import Job
from augury.serve.live import Live
from augury.serve.telemetry import Telemetry
from augury.serve.wire import Message

logger = logging.getLogger("augury")


class Observatory:
    """Collects every metric from what the engine does; `open` comes before anything else."""

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self.telemetry = telemetry  # where traces go

    def open(self, model: str, facts: dict[str, Any]) -> None:
        """Create the metrics, now that the engine is known."""
        if self.telemetry is not None and facts["method"] is not None:
            named = {"method": facts["method"], "num_speculative_tokens": facts["num_spec_tokens"]}
            self.telemetry.speculation = {f"augury.speculative.{name}": value for name, value in named.items()}
        self.registry = CollectorRegistry()
        self.engine = EngineProm(self.registry, model, facts["cache"])
        self.requests = RequestProm(self.registry, model, facts["max_model_len"])
        self.loras = LoraInfoProm(self.registry, facts["max_loras"]) if facts.get("max_loras") else None
        self.k: int = facts["num_spec_tokens"] or 0
        self.live = Live(self.k)
        self.lines, self.spec_lines = EngineLogging(), SpecDecodingLogging()
        self.spec: SpecDecodingProm | None = None
        self.speculation: SpeculationProm | None = None
        self.probes: ProbeProm | None = None
        self.adapters: AdapterProm | None = None
        if self.k:
            self.probes = ProbeProm(self.registry, model, self.k)
            self.adapters = AdapterProm(self.registry, model)
            self.spec = SpecDecodingProm(self.registry, model, self.k)
            self.speculation = SpeculationProm(self.registry, model, facts["method"], facts["rule"], facts["lossy"])

    def heard(self, message: Message) -> None:
        """Record a step or a heartbeat."""
        running, waiting, usage = message["load"]
        self.engine.load(running, waiting, usage)
        self.lines.running, self.lines.waiting, self.lines.kv_cache_usage = running, waiting, usage
        counts = message["counts"]
        self.engine.count(**counts)
        if message["type"] == "step":
            step = Step(**message["step"])
            self.lines.observe(step, counts.get("prefix_cache_queries", 0), counts.get("prefix_cache_hits", 0))
            self._step(step)
        if self.loras is not None and "loras" in message:
            self.loras.hear(*message["loras"])
        self.live.load(running, waiting)

    def _step(self, step: Step) -> None:
        self.engine.step(step)
        self.live.step(step)
        if self.speculation is not None:
            self.speculation.step(step)
            self.spec_lines.speedup = step.speedup or self.spec_lines.speedup
        if self.adapters is not None and step.tagged:
            self.adapters.step(step)
        if self.probes is not None and step.probe_tokens:
            self._probed(self.probes, step)
        if self.spec is not None and step.drafts:
            stats = SpecDecodingStats.new(self.k)
            for nodes, accepted, depth in step.drafts:
                stats.observe_draft(nodes, accepted, depth)
            self.spec.observe(stats)
            for tokens, (nodes, accepted, _) in zip(step.contexts, step.drafts, strict=False):
                self.spec.at_context(tokens, nodes, accepted)
            self.spec_lines.observe(stats)

    def _probed(self, probes: ProbeProm, step: Step) -> None:
        """Count the drafts of probes by themselves as well."""
        stats = SpecDecodingStats.new(self.k)
        for number, tag in step.tagged:
            if tag == PROBE:
                stats.observe_draft(*step.drafts[number])
        probes.observe(stats, step.probe_tokens)

    def taken(self, job: Job) -> None:
        """The engine has queued a job."""
        self.engine.count(prompt_tokens=job.prompt_tokens * job.n)

    def updated(self, job: Job, update: Message) -> None:
        """An answer has new output."""
        now, index = time.perf_counter(), update["index"]
        if index in job.latest:
            self.requests.between.observe(now - job.latest[index])
        else:
            job.first[index] = now - job.arrived
            self.requests.first_token.observe(job.first[index])
            self.engine.count(prompt_tokens_cached=update["cached"])
        job.latest[index] = now
        job.generated[index] += len(update["tokens"])
        if "end" in update:
            self._ended(job, index, now, update["end"])

    def _ended(self, job: Job, index: int, now: float, end: dict[str, Any]) -> None:
        figures = Finished(
            end["reason"],
            job.prompt_tokens,
            job.generated[index],
            end["cached"],
            end["preemptions"],
            job.max_tokens,
            now - job.arrived,
            end["queued"],
            end["prefill"],
            end["decode"],
        )
        self.requests.finished(figures)
        if self.telemetry is not None:
            self.telemetry.ended(job, index, figures.whole, job.first.get(index), end)
        if len(job.ended) == job.n:
            self.requests.longest.observe(max(job.generated))
            self.requests.n.observe(job.n)

    def aborted(self, job: Job, reason: str) -> None:
        """A job has ended early."""
        whole = time.perf_counter() - job.arrived
        alike = Counter(tokens for index, tokens in enumerate(job.generated) if index not in job.ended)
        for tokens, answers in alike.items():
            shared = (job.max_tokens, whole, None, None, None)
            self.requests.finished(Finished(reason, job.prompt_tokens, tokens, 0, 0, *shared), answers)
        if len(job.ended) < job.n:
            self.requests.n.observe(job.n)

    def fault(self, where: str) -> None:
        """The server has caught an error of its own."""
        self.engine.fault(where)

    async def log_forever(self, seconds: float) -> None:
        """Log the engine's line, followed by speculation's, at this interval."""
        while True:
            await asyncio.sleep(seconds)
            self.spec_lines.log(self.lines.log(logger.info, logger.debug))
