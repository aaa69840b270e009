"""What a trace says about the traffic: lengths, kind, and what model-free drafting would have done with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.tools.advise.accept import ConversationCounts
from augury.tools.replay.prefix import decoded_once, prefix_share
from augury.tools.replay.records import Conversation
from augury.tools.replay.tokens import Encoder, Script, scripts

MARKED = 0.3  # a trace is of a kind if this share of its answers has the mark
CODE = ("```", "def ", "class ", "import ", "function ", "#include", "SELECT ", "return ")


@dataclass(slots=True)
class Traffic:
    """The lengths and kind of requests; assumed until a trace or a server tells them."""

    prompt_tokens: float = 512.0
    answer_tokens: float = 256.0
    kind: str = "unknown"  # chat, code, agent
    requests: int = 0  # answers that were seen
    source: str = "assumed"
    running: float | None = None  # concurrent requests, if a server reported them
    cached: float = 0.0  # share of prompts found in the prefix cache
    prefix_share: float | None = None  # share of prompts that an earlier request of the trace began with
    answers: list[int] = field(default_factory=list)  # tokens of each
    notes: tuple[str, ...] = ()  # what its source could not provide

    @property
    def context(self) -> float:
        """Tokens in the cache of a request halfway through its answer."""
        return self.prompt_tokens + self.answer_tokens / 2


class Recorded:
    """A trace, read once: token ids, and what kind of text it is."""

    def __init__(self, conversations: Iterable[Conversation], encoder: Encoder, source: str) -> None:
        """Read and encode every conversation."""
        self._marks: dict[str, int] = {"agent": 0, "code": 0, "answers": 0, "texts": 0}
        read = (script for script in scripts(self._seen(conversations), encoder) if script.spans)
        self.scripts: list[Script] = list(decoded_once(read))
        self.source = source
        if not self.scripts:
            raise ConfigError(f"{source} contains no answers; advice needs the model's answers, not only prompts.")

    def _seen(self, conversations: Iterable[Conversation]) -> Iterator[Conversation]:
        for conversation in conversations:
            tools = any(turn.role == "tool" for turn in conversation.turns)
            for i in conversation.responses:
                said = conversation.turns[i].said
                self._marks["answers"] += 1
                if isinstance(said, str):
                    self._marks["texts"] += 1
                    self._marks["agent"] += tools or "<tool_call>" in said
                    self._marks["code"] += sum(mark in said for mark in CODE) >= 2 or "```" in said
            yield conversation

    @property
    def kind(self) -> str:
        """Agent, code or chat, by marks in the answers; unknown where only token ids were recorded."""
        texts = self._marks["texts"]
        if not texts:
            return "unknown"
        return next((kind for kind in ("agent", "code") if self._marks[kind] >= MARKED * texts), "chat")

    def traffic(self) -> Traffic:
        """The mean traffic; a prompt is everything before its answer, and prefixes seen earlier count as cached."""
        spans = [span for script in self.scripts for span in script.spans]
        answers, share = [stop - start for start, stop in spans], prefix_share(self.scripts)
        lengths = float(np.mean([start for start, _ in spans])), float(np.mean(answers))
        return Traffic(*lengths, self.kind, len(spans), self.source, cached=share, prefix_share=share, answers=answers)

    def replayed(self, config: Mapping[str, Any], lengths: Iterable[int]) -> dict[int, ConversationCounts]:
        """Counts of a model-free configuration at every K.

        Each K needs a walk of its own: after a shorter draft the next one begins elsewhere.
        """
        return {tokens: walked(self.scripts, {**config, "num_speculative_tokens": tokens}) for tokens in lengths}


def walked(texts: Iterable[Script], config: Mapping[str, Any], ends_by_length: bool = False) -> ConversationCounts:
    """Replay conversations with one configuration and count its steps and drafts.

    `ends_by_length`: the answers were cut at max_tokens, and an engine that knows the end drafts no further.
    """
    from augury.tools.replay.drafters import NO_LIMIT, walker_for
    from augury.tools.replay.walk import ACCEPTED, DRAFTED_AT, DRAFTS, STEPS

    parsed = resolve(config)
    assert parsed is not None
    walker = walker_for(parsed)
    rows: list[tuple[int, int, np.ndarray, int]] = []
    for script in texts:
        walker.limit = len(script.text) - walker.kept_free if ends_by_length else NO_LIMIT
        curve = np.zeros((4, walker.most + 1), np.int64)
        lines = walker.walk(script, curve)
        reached = curve[DRAFTED_AT]  # drafts of at least this depth; a chain's nodes are its depth
        nodes = np.concatenate([[lines[:, STEPS].sum() - lines[:, DRAFTS].sum()], reached[:-1] - reached[1:]])
        emitted = sum(stop - start - 1 for start, stop in script.spans)
        rows.append((emitted, int(lines[:, STEPS].sum()), nodes, int(lines[:, ACCEPTED].sum())))
    emitted, steps, nodes, accepted = zip(*rows, strict=True)
    return ConversationCounts(np.array(emitted), np.array(steps), np.stack(nodes), np.array(accepted))
