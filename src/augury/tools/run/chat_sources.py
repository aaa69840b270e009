"""The sources of chat answers: a server by its address, or an engine in this process, both in the same chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from augury.config.sampling import SamplingParams
from augury.tools.shared.endpoint import Endpoint
from augury.tools.shared.loading import chat_prompt

if TYPE_CHECKING:
    from augury.engine.llm import LLM

Messages = list[dict[str, Any]]


@dataclass(slots=True)
class NextAnswer:
    """The settings for the next answer."""

    temperature: float
    max_tokens: int
    seed: int | None = None
    plain: bool = False  # no speculation, if the source allows that choice

    @property
    def speculative(self) -> dict[str, Any]:
        """The request's `speculative` field, which always asks for the trace of steps."""
        return {"trace": True, **({"enabled": False} if self.plain else {})}


@dataclass(slots=True)
class Chunk:
    """A piece of an answer: text, the forward passes that produced it if known, and the figures at the end."""

    text: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    tokens: int | None = None  # of the whole answer, if reported only at the end
    metrics: dict[str, Any] | None = None  # speculation metrics, by vLLM's names


class Source(Protocol):
    """A model to chat with."""

    title: str
    ours: bool  # whether it reports tokens' origins and allows speculation to be switched off
    breakable: bool  # whether an answer may be interrupted anywhere, or only between two chunks

    def ask(self, messages: Messages, settings: NextAnswer) -> Iterator[Chunk]:
        """The answer to a conversation; closing the iterator stops it."""
        ...


class Remote:
    """A server. Augury's own fields are sent only to Augury servers, as others may refuse unknown fields."""

    breakable = True

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        live = endpoint.live()
        self.ours = live is not None
        method = (live or {}).get("method")
        said = f", {method}, K={live['num_spec_tokens']}" if live and method else ""
        self.title = f"{endpoint.model} at {endpoint.base}{said}"

    def ask(self, messages: Messages, settings: NextAnswer) -> Iterator[Chunk]:
        """Stream the answer from the server."""
        options: dict[str, Any] = {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
        if settings.seed is not None:
            options["seed"] = settings.seed
        if self.ours:
            options["speculative"] = settings.speculative
        for chunk in self.endpoint.chat(messages, stream_options={"include_usage": True}, **options):
            choices, usage = chunk.get("choices") or [{}], chunk.get("usage") or {}
            yield Chunk(
                (choices[0].get("delta") or {}).get("content") or "",
                (chunk.get("augury") or {}).get("steps", []),
                usage.get("completion_tokens"),
                (chunk.get("metrics") or {}).get("speculative_decoding"),
            )


class Local:
    """An engine in this process. A step is never interrupted, since the engine must also serve the next question."""

    ours, breakable = True, False

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        spec = llm.config.speculative_config
        self.title = llm.config.model + (f", {spec.method}, K={spec.num_speculative_tokens}" if spec else "")

    def ask(self, messages: Messages, settings: NextAnswer) -> Iterator[Chunk]:
        """Run the engine's steps until the answer is complete."""
        from augury.serve.reports import Report

        engine = self.llm.engine
        params = SamplingParams(
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            extra_args={"speculative": settings.speculative},
        )
        prompt = chat_prompt(self.llm, messages)["prompt_token_ids"]
        (request,) = self.llm.intake.requests("chat", prompt, params)
        report = Report(0, request, self.llm, detailed=False)
        engine.add(request)
        try:
            while request.finish_reason is None:
                for update in engine.step():
                    sent = report.update(update)
                    yield Chunk(sent["text"], [sent["trace"]], metrics=sent.get("end", {}).get("speculative_decoding"))
        finally:
            engine.abort(request)
