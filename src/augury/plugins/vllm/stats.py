"""Exports on vLLM's own `/metrics` what vLLM counts about speculation but does not export; loaded by entry point."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.v1.metrics.loggers import StatLoggerBase

from augury.plugins.vllm.allowance import FREE, ROW_COST, row_cost
from augury.plugins.vllm.names import METRICS
from augury.plugins.vllm.releases import refusal

logger = logging.getLogger("vllm.augury")
LABELS = ("model_name", "engine")
RECENT = 256  # steps that the gauges cover


@functools.cache
def _metrics() -> tuple[Counter, Counter, Gauge, Gauge, Gauge]:
    """The metrics, made once per process: engines that are built one after the other share them."""
    per_position, rejected, length, share, speed_up = METRICS
    return (
        Counter(per_position, "Tokens drafted, by position.", (*LABELS, "position")),
        Counter(rejected, "Drafted tokens that were rejected.", LABELS),
        _gauge(length, f"Tokens per drafted step of a request, over {RECENT} steps."),
        _gauge(share, f"Share of drafted tokens rejected, over {RECENT} steps."),
        _gauge(speed_up, f"Estimated speed-up over plain decoding, with {ROW_COST} as row cost, over {RECENT} steps."),
    )


def _gauge(name: str, text: str) -> Gauge:
    # With several API servers each counts the steps reported to it; as vLLM's own gauges do, the last one counts.
    return Gauge(name, text, LABELS, multiprocess_mode="mostrecent")


class SpeculationStats(StatLoggerBase):  # type: ignore[misc]
    """Counters and gauges of one engine; a fault here is logged once and never reaches the server."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        import vllm

        model = getattr(getattr(vllm_config, "model_config", None), "served_model_name", "")
        self._labels = (str(model), str(engine_index))
        self._row_cost = row_cost(os.environ.get(ROW_COST))
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=RECENT)
        self._faulty = refusal(getattr(vllm, "__version__", "")) is not None  # vLLM loads this in any release

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **named: Any) -> None:
        """Record what a step drafted."""
        seen = getattr(scheduler_stats, "spec_decoding_stats", None)
        if seen is None or self._faulty:
            return
        try:
            self._enter(seen)
        except Exception as error:  # of whatever kind: answers matter more than our counters
            self._faulty = True
            logger.warning("Augury's metrics stop: this vLLM counts speculation in another form (%s).", error)

    def _enter(self, seen: Any) -> None:
        per_position, rejected, length, share, speed_up = _metrics()
        for position, count in enumerate(seen.num_draft_tokens_per_pos):
            per_position.labels(*self._labels, str(position)).inc(count)
        rejected.labels(*self._labels).inc(max(0, seen.num_draft_tokens - seen.num_accepted_tokens))
        self._recent.append((seen.num_drafts, seen.num_draft_tokens, seen.num_accepted_tokens))
        drafts, drafted, accepted = (sum(column) for column in zip(*self._recent, strict=True))
        length.labels(*self._labels).set(1 + accepted / drafts if drafts else float("nan"))
        share.labels(*self._labels).set(1 - accepted / drafted if drafted else float("nan"))

        if self._row_cost > FREE and drafts:  # without it the cost of a drafted step is unknown here
            passes = 1 + self._row_cost * drafted / len(self._recent)
            speed_up.labels(*self._labels).set((1 + accepted / drafts) / passes)

    def log_engine_initialized(self) -> None:
        """Log nothing."""
