"""The router's decisions, as Prometheus counters."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest

from augury.scale.router import Choice


class RouterCounts:
    """Counters of the ingress; the replicas have their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests by replica and by why it was chosen: held, home, moved, spread.", "why"
        )
        self._found = self._counter("prefix_blocks_found", "Blocks of prompts that the chosen replica held.")
        self._asked = self._counter("prefix_blocks", "Blocks of prompts routed.")
        self._lost = self._counter("replicas_lost", "Requests whose replica died.")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"augury:router_{name}", text, ("replica", *labels), registry=self._registry)

    def chosen(self, choice: Choice, blocks: int) -> None:
        """Count a routing decision for a prompt of `blocks` blocks."""
        self._requests.labels(choice.replica, choice.why).inc()
        self._found.labels(choice.replica).inc(choice.blocks)
        self._asked.labels(choice.replica).inc(blocks)

    def lost(self, replica: str) -> None:
        """Count a request whose replica died."""
        self._lost.labels(replica).inc()

    def page(self) -> str:
        """The counters in Prometheus' text format."""
        return generate_latest(self._registry).decode()
