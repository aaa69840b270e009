"""Limits on what one request may cost and what all may hold: refused by name before the work is done."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from augury.serve.errors import ApiError
from augury.serve.shares import Shares

PROMPT_SCORES = 1 << 18  # log-probabilities of prompts in one response: answers x prompt tokens x (asked + 1)
SCORES = 1 << 20  # log-probabilities of answers in one response that is not streamed
ALL_SCORES = 1 << 22  # of all responses that are being put together
PARAMETERS = 16 << 20  # bytes: prompts x what goes to the engine with each of them


def check_lists(bias: Any, allowed: Any, vocabulary: int) -> None:
    """Refuse lists of tokens that are longer than the vocabulary, since they have no use."""
    for name, given in (("logit_bias", bias), ("allowed_token_ids", allowed)):
        if given is not None and len(given) > vocabulary:
            raise ApiError(400, f"{name}: {len(given)} entries; the vocabulary has {vocabulary} tokens.", name)


def check_parameters(params: dict[str, Any], prompts: int) -> None:
    """Refuse parameters that, sent to the engine once per prompt, add up to too many bytes."""
    if prompts == 1:
        return  # no more than the body that they came in
    size = len(json.dumps(params))
    if prompts * size > PARAMETERS:
        why = f"prompt: {prompts} prompts with parameters of {size} bytes each; at most {PARAMETERS} bytes in all"
        raise ApiError(400, f"{why}. Ask for fewer prompts at a time.", "prompt")


def prompt_scores(prompts: list[list[int]], n: int, params: dict[str, Any], field: str) -> int:
    """How many log-probabilities of prompts a response would hold; more than fit are refused."""
    asked = params.get("prompt_logprobs")
    if asked is None:
        return 0
    tokens = sum(map(len, prompts))
    total = n * tokens * (int(asked) + 1)
    if total > PROMPT_SCORES:
        why = f"{field}: {n} x {tokens} prompt tokens x {int(asked) + 1} log-probabilities are {total}"
        raise ApiError(400, f"{why}; at most {PROMPT_SCORES} in one request.", field)
    return total


class Scores:
    """The log-probabilities that responses hold now, by key."""

    def __init__(self, most: int = ALL_SCORES, keys: int = 1) -> None:
        self.held: Counter[str] = Counter()
        self._shares = Shares(most, keys)

    def take(self, more: int, client: str = "") -> None:
        """Count `more` of them as held; raises ApiError if they do not fit the key's share."""
        if not self._shares.fit(self.held, client, more):
            why = self._shares.why(self.held, client, more, "log-probabilities are held")
            raise ApiError(429, why, code="too_many_logprobs")
        self.held[client] += more

    def give(self, less: int, client: str = "") -> None:
        """Release `less` of them."""
        self.held[client] -= less
