"""LoRA adapters in Prometheus: which are asked for now, and what is drafted and accepted for each.

Drafters are made for the base model, and an adapter's answers may differ from its.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from augury.observe.stats import LORA
from augury.observe.steps import Step

LABELS = ("model_name", "engine", "lora_name")


class AdapterProm:
    """Speculation counters by adapter; requests of the base model are in none of them."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._model = model
        self._counters = [
            Counter(f"augury:spec_decode_num_{what}_by_adapter", f"{text}, by LoRA adapter.", LABELS, registry=registry)
            for what, text in (
                ("drafts", "Drafts verified"),
                ("draft_tokens", "Tokens drafted"),
                ("accepted_tokens", "Drafted tokens accepted"),
            )
        ]

    def step(self, step: Step) -> None:
        """Count the drafts of one step."""
        for number, tag in step.tagged:
            if tag.startswith(LORA):
                nodes, accepted, _ = step.drafts[number]
                for counter, count in zip(self._counters, (1, nodes, accepted), strict=True):
                    counter.labels(self._model, "0", tag.removeprefix(LORA)).inc(count)


class LoraInfoProm:
    """vLLM's gauge of the adapters in use, with which gateways route a request to where its adapter is loaded."""

    def __init__(self, registry: CollectorRegistry, max_loras: int) -> None:
        names = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        text = "Adapters of running and of waiting requests, in labels; the value is the time of the last update."
        self._gauge = Gauge("vllm:lora_requests_info", text, names, registry=registry)
        self._max, self._known = str(max_loras), ("", "")
        self._gauge.labels(self._max, "", "").set_to_current_time()

    def hear(self, running: Sequence[str], waiting: Sequence[str]) -> None:
        """Set the adapters whose requests run and wait; there is one series, with the names as they are now."""
        names = ",".join(waiting), ",".join(running)
        if names != self._known:
            self._gauge.clear()
            self._known = names
        self._gauge.labels(self._max, *names).set_to_current_time()
