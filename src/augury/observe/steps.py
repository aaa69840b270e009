"""What one pass of the engine did, as the metrics want it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Step:
    """One pass, counted on the host: a few numbers a request, whoever reads them."""

    requests: int  # that had a share in it
    rows: int  # rows of the forward pass: known tokens and draft nodes
    prompt_rows: int  # of them tokens of prompts
    budget: int  # most nodes a request may draft for the next step
    begun: float  # on time.perf_counter()
    seconds: float = 0.0
    drafter_seconds: float | None = None  # None where it cannot be told from the rest: a captured pass, a GPU
    generation_tokens: int = 0
    drafts: list[tuple[int, int, int]] = field(default_factory=list)  # nodes, accepted, depth of each draft judged

    @property
    def decoding_only(self) -> bool:
        """Whether every row was a token to continue from, or a draft."""
        return self.prompt_rows == 0

    @property
    def rejected_rows(self) -> int:
        """Rows spent on drafts that did not become text."""
        return sum(nodes - accepted for nodes, accepted, _ in self.drafts)
