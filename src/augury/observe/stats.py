"""What the engine counts, by vLLM's names.

`accepted` excludes the extra token that every step emits, `emitted` includes it; a rate is over drafted tokens, a
length includes the extra token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Parts = tuple[tuple[str, int], ...]  # which drafters made a draft: names, and nodes of each, in order
ByDrafter = dict[str, tuple[int, int]]  # drafted and accepted tokens by name
PROBE = "probe"  # the tag of requests that were sent to test the server; figures of traffic leave them out
LORA = "lora:"  # before an adapter's name: the tag of requests that use it
COUNTED = (
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
)
GRAMMAR_OUTCOMES = ("compiled", "reused", "invalid", "time", "memory", "stack", "crash", "retried", "busy", "stopped")


@dataclass(slots=True)
class SpecStats:
    """Speculation, counted over steps that had a draft."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)
    drafted_per_pos: list[int] = field(default_factory=list)

    def observe(self, drafted: int, accepted: int, depth: int) -> None:
        """Count one request's step: nodes drafted, drafts accepted, and how deep the draft went."""
        if drafted == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        missing = depth - len(self.accepted_per_pos)
        if missing > 0:
            self.accepted_per_pos += [0] * missing
            self.drafted_per_pos += [0] * missing
        for position in range(depth):
            self.drafted_per_pos[position] += 1
        for position in range(accepted):
            self.accepted_per_pos[position] += 1

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per drafted step."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0


def shared_out(parts: Parts, nodes: int, accepted: int) -> list[tuple[str, int, int]]:
    """Name, drafted and accepted tokens of each part of a chain whose first `nodes` were verified."""
    found, begin = [], 0
    for name, size in parts:
        drafted = min(size, nodes - begin)
        if drafted > 0:
            found.append((name, drafted, min(max(accepted - begin, 0), drafted)))
        begin += size
    return found


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine started."""

    spec: SpecStats = field(default_factory=SpecStats)
    by_drafter: ByDrafter = field(default_factory=dict)  # where several draft
    by_adapter: ByDrafter = field(default_factory=dict)  # drafted and accepted tokens of requests with LoRA adapters
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # in tokens, as vLLM counts
    prefix_cache_hits: int = 0
    external_prefix_cache_queries: int = 0  # those not found on the device, looked up in host memory; in tokens
    external_prefix_cache_hits: int = 0
    offloaded_blocks: int = 0  # copied to host memory
    damaged_blocks: int = 0  # found there with another checksum, and not used
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)  # by finish reason


@dataclass(frozen=True, slots=True)
class Counter:
    """A monotonic count."""

    name: str
    labels: dict[str, str]
    value: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """A current value."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Vector:
    """One count for each draft position."""

    name: str
    labels: dict[str, str]
    values: list[int]


Metric = Counter | Gauge | Vector


def as_metrics(stats: EngineStats, model: str, gauges: dict[str, float], speculating: bool) -> list[Metric]:
    """The counters as `LLM.get_metrics()` gives them: vLLM's names, without the `_total` Prometheus adds."""
    labels = {"model_name": model, "engine": "0"}
    metrics: list[Metric] = [Gauge(f"vllm:{name}", labels, value) for name, value in gauges.items()]
    for name in COUNTED:
        metrics.append(Counter(f"vllm:{name}", labels, getattr(stats, name)))
    metrics.append(Counter("vllm:num_preemptions", labels, stats.preemptions))
    for reason, count in stats.finished.items():
        metrics.append(Counter("vllm:request_success", {**labels, "finished_reason": reason}, count))
    for name, counts in stats.by_drafter.items():
        for what, value in zip(("draft", "accepted"), counts, strict=True):
            metrics.append(
                Counter(f"augury:spec_decode_num_{what}_tokens_by_drafter", {**labels, "drafter": name}, value)
            )
    for name, counts in stats.by_adapter.items():
        for what, value in zip(("draft", "accepted"), counts, strict=True):
            adapter = {**labels, "lora_name": name}
            metrics.append(Counter(f"augury:spec_decode_num_{what}_tokens_by_adapter", adapter, value))
    if speculating:
        spec = stats.spec
        metrics += [
            Counter("vllm:spec_decode_num_drafts", labels, spec.num_drafts),
            Counter("vllm:spec_decode_num_draft_tokens", labels, spec.num_draft_tokens),
            Counter("vllm:spec_decode_num_accepted_tokens", labels, spec.num_accepted_tokens),
            Vector("vllm:spec_decode_num_accepted_tokens_per_pos", labels, list(spec.accepted_per_pos)),
            Vector("augury:spec_decode_num_draft_tokens_per_pos", labels, list(spec.drafted_per_pos)),
        ]
    return metrics
