"""What one step of the engine did, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Step:
    """One step of the engine, that is one forward pass, counted on the host."""

    requests: int  # that took part
    rows: int  # rows of the forward pass: known tokens and draft nodes
    prompt_rows: int  # rows that are prompt tokens
    budget: int  # most nodes a request may draft for the next step
    begun: float  # on time.perf_counter()
    seconds: float = 0.0  # from the landing of the pass before it to its own
    drafter_seconds: float | None = None  # None where it cannot be measured separately: a captured pass
    generation_tokens: int = 0
    drafts: list[tuple[int, int, int]] = field(default_factory=list)  # nodes, accepted, depth of each verified draft
    speedup: tuple[float, float, float] | None = None  # measured times plain at its load, and a 95 % interval
    sample: bool = False  # without drafts on purpose, to be compared with passes with drafts
    contexts: list[int] = field(default_factory=list)  # tokens of the request of each, after the pass
    tagged: list[tuple[int, str]] = field(default_factory=list)  # numbers of drafts, with a tag of their requests
    probe_tokens: int = 0  # of the generated ones: those of probes
    parts: list[tuple[str, int, int]] = field(default_factory=list)  # name, drafted, accepted, where several draft
    drafter_depth: int = 0  # most nodes that `drafter_seconds` went into

    @property
    def decoding_only(self) -> bool:
        """Whether no row was a prompt token: all were the last tokens of texts, or drafts."""
        return self.prompt_rows == 0

    @property
    def rejected_rows(self) -> int:
        """Rows spent on drafts that did not become text."""
        return sum(nodes - accepted for nodes, accepted, _ in self.drafts)
