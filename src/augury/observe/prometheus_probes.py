"""Speculation counters of probes alone: vLLM's counters include probes, so that these can be subtracted from them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from augury.observe.spec_decoding import SpecDecodingStats

LABELS = ("model_name", "engine")


class ProbeProm:
    """Speculation counters of requests with the header `x-augury-probe`, such as those of `augury check --probe`."""

    def __init__(self, registry: CollectorRegistry, model: str, num_spec_tokens: int) -> None:
        def counter(what: str, text: str, *more: str) -> Counter:
            return Counter(f"augury:probe_{what}", f"{text} of probes.", (*LABELS, *more), registry=registry)

        labels = (model, "0")
        self._drafts = counter("num_drafts", "Drafts verified").labels(*labels)
        self._drafted = counter("num_draft_tokens", "Tokens drafted").labels(*labels)
        self._accepted = counter("num_accepted_tokens", "Drafted tokens accepted").labels(*labels)
        self._tokens = counter("generation_tokens", "Tokens generated for answers").labels(*labels)
        positions = [str(position) for position in range(num_spec_tokens)]
        accepted = counter("num_accepted_tokens_per_pos", "Accepted drafts at each position", "position")
        drafted = counter("num_draft_tokens_per_pos", "Drafts that reached a position", "position")
        self._accepted_at = [accepted.labels(*labels, position) for position in positions]
        self._drafted_at = [drafted.labels(*labels, position) for position in positions]

    def observe(self, stats: SpecDecodingStats, tokens: int) -> None:
        """Add the probes of one step: their drafts, and the tokens generated for them."""
        self._tokens.inc(tokens)
        self._drafts.inc(stats.num_drafts)
        self._drafted.inc(stats.num_draft_tokens)
        self._accepted.inc(stats.num_accepted_tokens)
        for children, counts in (
            (self._accepted_at, stats.num_accepted_tokens_per_pos),
            (self._drafted_at, stats.num_draft_tokens_per_pos),
        ):
            for child, count in zip(children, counts, strict=True):
                child.inc(count)
