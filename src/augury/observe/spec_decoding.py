"""Speculation statistics of an interval, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpecDecodingStats:
    """Drafted and accepted tokens of one or more steps; positions count from 0."""

    num_spec_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_draft_tokens_per_pos: list[int] = field(default_factory=list)  # ours

    @classmethod
    def new(cls, num_spec_tokens: int) -> SpecDecodingStats:
        """Empty statistics, for drafts of up to `num_spec_tokens` positions."""
        blank = [0] * num_spec_tokens
        return cls(num_spec_tokens, num_accepted_tokens_per_pos=list(blank), num_draft_tokens_per_pos=list(blank))

    def observe_draft(self, num_draft_tokens: int, num_accepted_tokens: int, depth: int | None = None) -> None:
        """Count one request's draft; `depth` is how many positions it reached, fewer than its tokens in a tree."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(min(num_accepted_tokens, self.num_spec_tokens)):
            self.num_accepted_tokens_per_pos[position] += 1
        for position in range(min(num_draft_tokens if depth is None else depth, self.num_spec_tokens)):
            self.num_draft_tokens_per_pos[position] += 1
