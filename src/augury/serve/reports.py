"""What the engine process tells the server about one answer, step by step."""

from __future__ import annotations

import time
from typing import Any

from augury.engine.commit import Update
from augury.engine.llm import LLM
from augury.engine.outputs import spec_metrics
from augury.engine.request import LogprobDict, Request
from augury.engine.text import TextStream
from augury.serve.wire import Message


class Report:
    """Remembers what has been sent of one answer, so that every message holds only what is new."""

    def __init__(
        self, job: int, request: Request, llm: LLM, detailed: bool, spellings: dict[int, list[Any]] | None = None
    ) -> None:
        self.job = job
        self.request = request
        self._llm = llm
        self._detailed = detailed
        self._spellings = {} if spellings is None else spellings  # shared by all reports
        self._shown = 0  # characters sent
        self._scored = 0  # log-probabilities sent
        self._prompt_scored = 0  # and of the prompt
        self._first_at = 0.0
        self._decode = llm.tokenizer.decoder(skip_special=False)
        self._spelled: TextStream | None = None  # the text so far, for traces

    def update(self, update: Update) -> Message:
        """The message for one step; text that may be part of a stop string is held back."""
        request, ended = self.request, self.request.finish_reason is not None
        message: Message = {"id": self.job, "index": request.index, "tokens": update.tokens, "text": self._text(ended)}
        if not self._first_at:
            self._first_at = time.perf_counter()
            message["cached"] = request.cached_tokens
        if request.params.logprobs is not None:
            message["logprobs"] = [self._scores(entry) for entry in request.logprobs[self._scored :]]
            self._scored = len(request.logprobs)
        if update.trace is not None:
            message["trace"] = self._spell(update.trace)
        if ended:
            message["end"] = self._end()
        return message

    def prompt_scores(self) -> Message | None:
        """The prompt's scores of the last step, so that those of a long one go out step by step; else None."""
        fresh = self.request.prompt_logprobs[self._prompt_scored :]
        if not fresh:
            return None  # also while a preempted request reads its prompt again
        self._prompt_scored += len(fresh)
        return {"type": "scores", "id": self.job, "entries": [self._scores(entry) for entry in fresh]}

    def _text(self, ended: bool) -> str:
        stream = self.request.text
        if stream is None:
            return ""
        settled = stream.settled(ended)
        fresh, self._shown = stream.text[self._shown : settled], max(self._shown, settled)
        return fresh

    def _scores(self, entry: LogprobDict | None) -> list[list[Any]] | None:
        """Token, log-probability, rank, text, and bytes where the text hides them; the chosen token first."""
        if entry is None:
            return None
        return [[token, value.logprob, value.rank, *self._token(token)] for token, value in entry.items()]

    def _token(self, token: int) -> list[Any]:
        """A token's text, and its bytes if they are not those of the text; each token is decoded only once."""
        known = self._spellings.get(token)
        if known is None:
            text = self._decode([token])
            real = self._llm.tokenizer.bytes.of(token, text)
            known = [text] if real == text.encode("utf-8", "replace") else [text, list(real)]
            self._spellings[token] = known
        return known

    def _spell(self, trace: dict[str, Any]) -> dict[str, Any]:
        """Give the tokens of a step their texts; a character of several tokens goes to the one that completes it."""
        if self._spelled is None:
            decode = self._llm.tokenizer.decoder(self.request.params.skip_special_tokens)
            self._spelled = TextStream(decode, self.request.tokens[: self.request.prompt_len])
        spelled = self._spelled
        for token in trace["tokens"]:
            before = len(spelled.text)
            spelled.push(token["id"])
            token["text"] = spelled.text[before:]
        if "draft" in trace:
            trace["draft"]["tokens"] = [self._decode([token]) for token in trace["draft"]["ids"]]
        return trace

    def _end(self) -> dict[str, Any]:
        request, spec = self.request, self._llm.config.speculative_config
        now = time.perf_counter()
        figures: dict[str, Any] = {}
        if spec is not None or request.spec.num_drafts:
            figures = spec_metrics(request, spec.num_speculative_tokens if spec else 0, self._detailed)
        figures["enabled"] = request.spec_options.off is None
        if request.spec_options.off is not None:
            figures["why"] = request.spec_options.off
        saver = self._llm.engine.saver
        return {
            "reason": request.finish_reason,
            "stop": request.stop_reason,
            "speculative_decoding": figures,
            "cached": request.cached_tokens,
            "preemptions": request.preemptions,
            "prediction": [request.prediction.accepted, request.prediction.rejected] if request.prediction else None,
            "queued": request.seated_at - request.added_at,
            "prefill": self._first_at - request.seated_at,
            "decode": now - self._first_at,
            "kv_transfer_params": saver.saved(request) if saver else None,
        }
