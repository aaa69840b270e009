"""What is drafted and accepted, by LoRA adapter: drafters are the base's, and an adapter may have led away from it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

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
                ("drafts", "Drafts judged"),
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
