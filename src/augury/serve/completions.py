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
from augury.serve.scores import Entry, completion_logprobs, prompt_logprobs
from augury.serve.wire import Message


class CompletionShape:
    """A choice is a text; with `echo` the prompt stands before it."""

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

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A finished choice."""
        choice: dict[str, Any] = {"index": index, "text": self._echo(index), "logprobs": None}
        scored = self._prompt_scores(index, answer.prompt_logprobs)
        if self._only_echo:
            answer.tokens, answer.end = [], {**answer.end, "reason": "length", "stop": None}
        else:
            choice["text"] += answer.text
            scored += answer.logprobs
        if self.request.logprobs is not None:
            choice["logprobs"] = completion_logprobs(scored, 0, self.request.logprobs)
        if self.request.prompt_logprobs is not None and answer.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs)
        return choice

    def opening(self, index: int) -> dict[str, Any] | None:
        """The prompt, if it is to be echoed and needs no scores, which come with the first token."""
        if not self.request.echo or self.request.logprobs is not None:
            return None
        return {"text": self._echo(index), "logprobs": None}

    def delta(self, index: int, answer: Answer, update: Message) -> dict[str, Any] | None:
        """What a step added."""
        text, scored = update["text"], list(update.get("logprobs", ()))
        if self._only_echo:
            text, scored, update["tokens"] = "", [], []
        if self.request.logprobs is not None and "prompt_logprobs" in update:
            text = self._echo(index) + text
            scored = self._prompt_scores(index, update["prompt_logprobs"]) + scored
        if not text and not scored and "end" not in update:
            return None
        delta: dict[str, Any] = {"text": text, "logprobs": None}
        if self.request.logprobs is not None:
            begin = self._offsets.get(index, 0)
            delta["logprobs"] = completion_logprobs(scored, begin, self.request.logprobs)
            self._offsets[index] = begin + sum(len(entry[0][3]) for entry in scored)
        return delta

    def _echo(self, index: int) -> str:
        return self._echoed[index // (self.request.n or 1)] if self.request.echo else ""

    def _prompt_scores(self, index: int, entries: list[Entry | None] | None) -> list[Entry]:
        if not self.request.echo or self.request.logprobs is None or entries is None:
            return []
        prompt = index // (self.request.n or 1)
        unscored: Entry = [[self._prompts[prompt][0], None, None, self._starts[prompt]]]
        return [unscored if entry is None else entry for entry in entries]


async def completions(
    request: CompletionRequest, prompts: Prompts, client: EngineClient, model: str, metrics: str
) -> Answers:
    """Read a request and make its answers ready to begin."""
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
    """Decoding an id that does not exist would fail before the engine can refuse it."""
    wrong = next((token for token in ids if not 0 <= token < vocab), None)
    if wrong is not None:
        raise ApiError(400, f"prompt: token id {wrong} is not in the vocabulary of {vocab}.", "prompt")
