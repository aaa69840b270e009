"""One streamed answer: its text in pieces marked as drafted or not, and its figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from augury.observe.stats import SpecStats

if TYPE_CHECKING:
    from augury.config.sampling import SamplingParams
    from augury.engine.commit import Update
    from augury.engine.llm import LLM


class Piece(NamedTuple):
    """A piece of text, and whether it comes from an accepted draft."""

    text: str
    drafted: bool


class Pieces:
    """Splits one request's growing text into its tokens, so that each can have its own colour."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._stream: Any = None
        self._waiting: list[Piece] = []
        self._shown = 0

    def take(self, update: Update) -> list[Piece]:
        """The pieces that a step completed; text that may become a stop string is held back."""
        from augury.engine.text import TextStream

        request = update.request
        self._stream = self._stream or TextStream(self._decode, request.tokens[: request.prompt_len])
        for i, token in enumerate(update.tokens):
            before = len(self._stream.text)
            self._stream.push(token)
            self._waiting.append(Piece(self._stream.text[before:], i < update.accepted))
        if request.text is None:
            return []
        finished = request.finish_reason is not None
        return list(self._release(request.text.settled(finished), request.text.text if finished else None))

    def _release(self, settled: int, final: str | None) -> Iterator[Piece]:
        while self._waiting and self._shown < settled:
            piece = self._waiting.pop(0)
            fits = piece.text[: settled - self._shown]
            if len(fits) < len(piece.text):
                self._waiting.insert(0, Piece(piece.text[len(fits) :], piece.drafted))
            self._shown += len(fits)
            yield Piece(fits, piece.drafted)
        if final is not None and self._shown < len(final):  # an incomplete character at the very end
            yield Piece(final[self._shown :], False)
            self._shown = len(final)


@dataclass(slots=True)
class Run:
    """One answer and its figures."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    steps: int = 0  # forward passes that added tokens
    seconds: float = 0.0
    first_seconds: float = 0.0  # until the first token
    first_tokens: int = 0
    spec: SpecStats = field(default_factory=SpecStats)

    @property
    def speed(self) -> float:
        """Tokens per second after prefill."""
        rest = len(self.token_ids) - self.first_tokens
        if rest > 0 and self.seconds > self.first_seconds:
            return rest / (self.seconds - self.first_seconds)
        return len(self.token_ids) / self.seconds if self.seconds else 0.0

    def metrics(self) -> dict[str, Any]:
        """The figures for --json."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": len(self.token_ids),
            "steps": self.steps,
            "seconds": round(self.seconds, 4),
            "time_to_first_token": round(self.first_seconds, 4),
            "tokens_per_second": round(self.speed, 2),
            **acceptance(self.spec),
        }


def acceptance(spec: SpecStats) -> dict[str, Any]:
    """Figures of speculation: the rate is over drafted tokens, the length includes each step's extra token."""
    return {
        "num_drafts": spec.num_drafts,
        "num_draft_tokens": spec.num_draft_tokens,
        "num_accepted_tokens": spec.num_accepted_tokens,
        "acceptance_rate": round(spec.acceptance_rate, 4),
        "acceptance_length": round(spec.acceptance_length, 4),
    }


def follow(
    llm: LLM, prompt: Any, params: SamplingParams, show: Callable[[list[Piece], Run], None] | None = None
) -> Run:
    """Run one prompt to its end and time it, passing every step's text to `show`."""
    run, pieces = Run(), Pieces(llm.tokenizer.decoder(params.skip_special_tokens))
    begun = time.perf_counter()
    for update in llm.stream(prompt, params):
        run.seconds = time.perf_counter() - begun
        request = update.request
        if not run.steps:
            run.first_seconds, run.first_tokens = run.seconds, len(update.tokens)
        run.steps += 1
        run.prompt_tokens, run.token_ids, run.spec = request.prompt_len, request.output, request.spec
        run.finish_reason = request.finish_reason
        run.text = request.text.text if request.text else ""
        if show is not None:
            show(pieces.take(update), run)
    return run
