"""Reads a live server's metrics with Prometheus's own parser, or explains what came instead."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from augury.plugins.vllm.names import METRICS
from augury.tools.shared.http import Reply, Server, Unreadable
from augury.tools.shared.safe_text import printable

LONGEST = 20_000  # characters of one line; a longer one is not a metric, and the parser takes quadratic time
Series = list[tuple[dict[str, str], float]]

# The exporter by the prefix of its metric names; the first match applies.
ENGINES = (
    ("sglang:", "SGLang"),
    ("llamacpp:", "llama.cpp"),
    ("tgi_", "Text Generation Inference"),
    ("trtllm_", "TensorRT-LLM"),
    ("nv_inference", "the Triton server"),
    ("lmdeploy:", "LMDeploy"),
    ("dynamo_", "Dynamo's front end"),
    ("ray_", "Ray"),
    ("node_", "a node exporter"),
    ("DCGM_", "a GPU exporter"),
    ("container_", "cAdvisor"),
    ("prometheus_", "Prometheus itself"),
)
# Names that only vLLM's first engine (V0) had, whose figures were counted differently.
FIRST_ENGINE = (
    "vllm:spec_decode_draft_acceptance_rate",
    "vllm:spec_decode_efficiency",
    "vllm:spec_decode_num_emitted_tokens",
    "vllm:num_requests_swapped",
    "vllm:cpu_cache_usage_perc",
)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one scrape, by name."""

    at: float  # time.monotonic() when the response arrived
    seconds: float  # the request took
    samples: dict[str, Series]
    names: frozenset[str] = field(default_factory=frozenset)  # of metrics, also those without a sample yet

    @property
    def ours(self) -> bool:
        """Whether the server is Augury's own, not vLLM with Augury's plugin, which also exports a few metrics."""
        return any(name.startswith("augury:") and not name.startswith(METRICS) for name in self.names)

    @property
    def engine(self) -> str:
        """The engine that exports these metrics."""
        return "Augury" if self.ours else "vLLM"


def scrape(server: Server) -> Scrape:
    """Read a server's metrics once."""
    try:
        reply = server.metrics()
    except Unreadable as error:
        raise _without_metrics(server) or error if error.kind == "not-found" else error from None
    at = time.monotonic()
    samples, names = parse(reply, server.base)
    _check_engine(samples, names, server.base)
    return Scrape(at, reply.seconds, samples, frozenset(names))


def _without_metrics(server: Server) -> Unreadable | None:
    """An error for a model server without metrics; None if it is not a model server."""
    models = server.models()
    if not models:
        return None
    name, owner = next(iter(models.items()))
    whose = f" (owned by {_shown(owner)})" if owner else ""
    return Unreadable(
        "no-metrics",
        f"{server.base} serves {_shown(name)}{whose} and has no /metrics; is it vLLM, and does a proxy leave them out?",
    )


def parse(reply: Reply, base: str) -> tuple[dict[str, Series], set[str]]:
    """Samples by name, and the names of all metrics."""
    text = reply.body.decode("utf-8", "replace").replace("\r\n", "\n")
    _check_text(text, reply.kind, base)
    from prometheus_client.parser import text_fd_to_metric_families  # imported on use to keep start-up fast

    reached = 0

    def lines() -> Iterator[str]:
        nonlocal reached
        for line in text.split("\n"):
            reached += 1
            if len(line) > LONGEST:
                raise ValueError("a line without end")
            yield line

    samples: dict[str, Series] = defaultdict(list)
    names: set[str] = set()
    try:
        for family in text_fd_to_metric_families(lines()):  # type: ignore[arg-type]
            names.add(family.name)
            for sample in family.samples:
                samples[sample.name].append((sample.labels, float(sample.value)))
    except Exception:  # the parser may raise anything on a broken line
        line = text.split("\n")[reached - 1] if reached else ""
        raise _malformed(base, reached, line) from None
    return dict(samples), names


def _check_text(text: str, kind: str, base: str) -> None:
    """Raise Unreadable for a text that is plainly not metrics, before the parser fails on it."""
    head = text.lstrip()[:200].lower()
    if not head:
        raise Unreadable("empty", f"{base}/metrics is empty; a server with its metrics off answers so.")
    if head.startswith(("<!doctype", "<html", "<?xml")) or "text/html" in kind:
        raise Unreadable("html", f"{base}/metrics is a web page, not metrics; is that the API server's address?")
    if head[0] in "{[" or "application/json" in kind:
        raise Unreadable("json", f"{base}/metrics is JSON, not metrics; give the address of the model's own server.")
    if "\x00" in text or text.count("\ufffd") > 20:
        raise Unreadable("malformed", f"{base}/metrics is binary data, not metrics.")
    if not text.endswith("\n"):
        number = text.count("\n") + 1
        raise Unreadable(
            "truncated", f"{base}/metrics is cut off in line {number}: {_shown(text.rsplit(chr(10), 1)[-1])}"
        )


def _malformed(base: str, number: int, line: str) -> Unreadable:
    return Unreadable("malformed", f"{base}/metrics: line {number} is not a metric: {_shown(line)}")


def _shown(line: str) -> str:
    return printable(line if len(line) <= 60 else f"{line[:57]}...")


def _check_engine(samples: dict[str, Series], names: set[str], base: str) -> None:
    """Raise Unreadable for metrics of another program, or of vLLM's V0 engine, whose figures mean something else."""
    known = names | set(samples)
    if any(name.startswith(FIRST_ENGINE) for name in known):
        raise Unreadable(
            "first-engine",
            f"{base}: these are the names of vLLM's first engine (V0), which counted otherwise; "
            "use vLLM 0.9 or later, or unset VLLM_USE_V1=0.",
        )
    if any(name.startswith(("vllm:", "augury:")) for name in known):
        return
    if not known:
        raise Unreadable("empty", f"{base}/metrics holds no metric.")
    whose = next((engine for begin, engine in ENGINES if any(name.startswith(begin) for name in known)), None)
    said = f"of {whose}" if whose else f"of something else (for example {_shown(min(known))})"
    raise Unreadable("other", f"{base}: these are the metrics {said}; vLLM's and Augury's begin with vllm:.")
