"""/v1/completions: request to engine to response."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from augury.serve.answers import Answer, Answers
from augury.serve.costs import check_lists
from augury.serve.engine_client import EngineClient
from augury.serve.errors import ApiError
from augury.serve.openai import CompletionRequest
from augury.serve.prompts import Prompts
from augury.serve.scores import Entry, Logprobs, completion_logprobs, prompt_logprobs
from augury.serve.wire import Message


class CompletionShape:
    """Choices as texts; with `echo`, after the prompt."""

    object = chunk_object = "text_completion"
    empty: ClassVar[dict[str, Any]] = {"text": "", "logprobs": None}

    def __init__(
        self, request: CompletionRequest, prompts: list[list[int]], echoed: list[str], starts: list[str]
    ) -> None:
        self.request = request
        self._prompts = prompts
        self._echoed = echoed  # the prompts' texts; empty without echo
        self._starts = starts  # the text of each prompt's first token, which has no score
        self._only_echo = bool(request.echo) and request.max_tokens == 0
        self._offsets: dict[int, int] = {}
        self._echoed_scores: dict[int, tuple[Logprobs, int]] = {}  # by prompt, and where its text ends
        self._prompt_scores: dict[int, list[dict[str, Any] | None]] = {}  # by prompt, in vLLM's shape

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A finished choice."""
        choice: dict[str, Any] = {"index": index, "text": self._echo(index), "logprobs": None}
        scored = answer.logprobs
        if self._only_echo:
            scored, answer.tokens, answer.end = [], [], {**answer.end, "reason": "length", "stop": None}
        else:
            choice["text"] += answer.text
        if self.request.logprobs is not None:
            choice["logprobs"] = self._logprobs(index, answer.prompt_logprobs, scored)
        if self.request.prompt_logprobs is not None and answer.prompt_logprobs is not None:
            prompt = index // self._n
            if prompt not in self._prompt_scores:  # once for all n
                self._prompt_scores[prompt] = prompt_logprobs(answer.prompt_logprobs)
            choice["prompt_logprobs"] = self._prompt_scores[prompt]
        return choice

    def opening(self, index: int) -> dict[str, Any] | None:
        """The prompt, if it is to be echoed and needs no scores, which come with the first token."""
        if not self.request.echo or self.request.logprobs is not None:
            return None
        return {"text": self._echo(index), "logprobs": None}

    def ahead(self, index: int, update: Message) -> list[dict[str, Any]]:
        """Always empty: a step is one chunk."""
        return []

    def delta(self, index: int, answer: Answer, update: Message) -> dict[str, Any] | None:
        """What a step added."""
        text, scored = update["text"], list(update.get("logprobs", ()))
        if self._only_echo:
            text, scored, update["tokens"] = "", [], []
        if self.request.logprobs is not None and "prompt_logprobs" in update:
            text = self._echo(index) + text
        if not text and not scored and "end" not in update:
            return None
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = self._logprobs(index, update.get("prompt_logprobs"), scored)
        return {"text": text, "logprobs": logprobs}

    @property
    def _n(self) -> int:
        return self.request.n or 1

    def _echo(self, index: int) -> str:
        return self._echoed[index // self._n] if self.request.echo else ""

    def _logprobs(self, index: int, of_prompt: list[Entry | None] | None, entries: list[Entry]) -> Logprobs:
        """OpenAI's lists for a choice's new tokens, after those of an echoed prompt, which its n choices share."""
        top, begin = self.request.logprobs or 0, self._offsets.get(index, 0)
        head: Logprobs = {}
        if self.request.echo and of_prompt is not None:
            head, begin = self._echoed_logprobs(index // self._n, of_prompt, top)
        shape, self._offsets[index] = completion_logprobs(entries, begin, top)
        return {name: head.get(name, []) + items for name, items in shape.items()}

    def _echoed_logprobs(self, prompt: int, entries: list[Entry | None], top: int) -> tuple[Logprobs, int]:
        if prompt not in self._echoed_scores:  # once for all n
            unscored: Entry = [[self._prompts[prompt][0], None, None, self._starts[prompt]]]
            known = [unscored if entry is None else entry for entry in entries]
            self._echoed_scores[prompt] = completion_logprobs(known, 0, top)
        return self._echoed_scores[prompt]


async def completions(
    request: CompletionRequest, prompts: Prompts, client: EngineClient, model: str, metrics: str
) -> Answers:
    """Check a request, tokenize its prompts and prepare its answers."""
    request.check()
    check_lists(request.logit_bias, request.allowed_token_ids, client.facts["vocab_size"])
    params = await asyncio.to_thread(_parameters, request) if request.heavy else _parameters(request)
    tokens, echoed, starts = [], [], []
    for prompt in request.prompts:  # all of them before the first is worked on
        if isinstance(prompt, str):
            prompts.lengths.check_text(prompt, "prompt")
        else:
            prompts.lengths.check_tokens(prompt, "prompt")
    for prompt in request.prompts:
        special = request.add_special_tokens is not False
        ids = await prompts.encode(prompt, special) if isinstance(prompt, str) else prompt
        if not ids:
            raise ApiError(400, "prompt: it is empty; give it at least one token.", "prompt")
        prompts.lengths.check_tokens(ids, "prompt")
        tokens.append(ids)
        if request.echo:
            _check_ids(ids, client.facts["vocab_size"])
            echoed.append(prompt if isinstance(prompt, str) else await prompts.decode(ids))
            starts.append(await prompts.decode(ids[:1]))
    if not tokens:
        raise ApiError(400, "prompt: there is none; give at least one.", "prompt")
    if request.prediction is not None:
        params = await prompts.expected(request.prediction.text, params)
    shape = CompletionShape(request, tokens, echoed, starts)
    return Answers(request, client, tokens, params, shape, "cmpl", model, metrics)


def _parameters(request: CompletionRequest) -> dict[str, Any]:
    most: int | None = request.max_tokens
    scores = request.prompt_logprobs
    if request.echo:
        most = 1 if most == 0 else most  # nothing but the prompt's scores: one token is drawn and left out
        scores = scores if request.logprobs is None else max(request.logprobs, scores or 0)
    limit = {} if most is None else {"max_tokens": most}
    return request.parameters(logprobs=request.logprobs, prompt_logprobs=scores, **limit)


def _check_ids(ids: list[int], vocab: int) -> None:
    """Refuse ids that do not exist: decoding one would fail before the engine can refuse it."""
    wrong = next((token for token in ids if not 0 <= token < vocab), None)
    if wrong is not None:
        raise ApiError(400, f"prompt: token id {wrong} is not in the vocabulary of {vocab}.", "prompt")
