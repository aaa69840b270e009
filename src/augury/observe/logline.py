"""The two log lines that vLLM writes every ten seconds, in its words and precision."""

from __future__ import annotations

import time
from collections.abc import Callable

from augury.observe.spec_decoding import SpecDecodingStats
from augury.observe.steps import Step

Log = Callable[[str], object]


class SpecDecodingLogging:
    """Gathers speculation statistics between two log lines."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self.num_drafts: list[int] = []
        self.num_draft_tokens: list[int] = []
        self.num_accepted_tokens: list[int] = []
        self.accepted_tokens_per_pos_lists: list[list[int]] = []
        self.speedup: tuple[float, float, float] | None = None
        self.last_log_time = time.monotonic()

    def observe(self, spec_decoding_stats: SpecDecodingStats) -> None:
        """Add the statistics of one step."""
        self.num_drafts.append(spec_decoding_stats.num_drafts)
        self.num_draft_tokens.append(spec_decoding_stats.num_draft_tokens)
        self.num_accepted_tokens.append(spec_decoding_stats.num_accepted_tokens)
        self.accepted_tokens_per_pos_lists.append(spec_decoding_stats.num_accepted_tokens_per_pos)

    def log(self, log_fn: Log) -> None:
        """Write the line, unless nothing was drafted, and start a new interval."""
        drafts, drafted, accepted = sum(self.num_drafts), sum(self.num_draft_tokens), sum(self.num_accepted_tokens)
        if drafts:
            seconds = max(1e-9, time.monotonic() - self.last_log_time)
            columns = zip(*self.accepted_tokens_per_pos_lists, strict=True)
            rates = ", ".join(f"{sum(column) / drafts:.3f}" for column in columns)
            overall = accepted / drafted * 100 if drafted else float("nan")
            measured = "" if self.speedup is None else ", Measured: {:.2f}x plain (95 %: {:.2f} to {:.2f})"
            log_fn(
                f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
                f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
                f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
                f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
                f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {overall:.1f}%"
                + measured.format(*(self.speedup or ()))
            )
        self.reset()


class EngineLogging:
    """Gathers throughput statistics between two log lines."""

    def __init__(self) -> None:
        self.running = self.waiting = 0
        self.kv_cache_usage = 0.0
        self._queries = self._hits = 0
        self._idle = True
        self._begin()

    def _begin(self) -> None:
        self._prompt_tokens = self._generation_tokens = 0
        self._since = time.monotonic()

    def observe(self, step: Step, queries: int, hits: int) -> None:
        """Add one step, and the prefix cache's look-ups since the last."""
        self._prompt_tokens += step.prompt_rows
        self._generation_tokens += step.generation_tokens
        self._queries += queries
        self._hits += hits

    def log(self, info: Log, debug: Log) -> Log:
        """Write the line, at debug level after a whole idle interval; returns the logger it used."""
        seconds = max(1e-9, time.monotonic() - self._since)
        idle = not (self._prompt_tokens or self._generation_tokens)
        log, self._idle = (debug if idle and self._idle else info), idle
        hit_rate = 100 * self._hits / self._queries if self._queries else 0.0
        log(
            f"Engine 000: Avg prompt throughput: {self._prompt_tokens / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {self._generation_tokens / seconds:.1f} tokens/s, "
            f"Running: {self.running} reqs, Waiting: {self.waiting} reqs, "
            f"GPU KV cache usage: {100 * self.kv_cache_usage:.1f}%, Prefix cache hit rate: {hit_rate:.1f}%"
        )
        self._begin()
        return log
