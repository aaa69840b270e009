"""An OpenAI-compatible server: completions and chat streams."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from augury.tools.shared.http import Server, Unreadable, brief, error_message, listed_models

if TYPE_CHECKING:
    import httpx

END = "(end)"  # stands for the end-of-sequence token, which servers do not show
COUNTER = r"^(?:{name})(?:_total)?(?:\{{[^}}]*\}})? +([0-9.eE+]+)"
DRAFTS = "vllm:spec_decode_num_drafts"


class Completion(NamedTuple):
    """One completion."""

    tokens: tuple[str, ...]  # as texts; one element with the whole text if the server does not list them
    likely: tuple[dict[str, float], ...] | None  # log-probabilities of the likeliest tokens by position, if offered

    def joined(self) -> Completion:
        """The same completion as one text, to compare with a server that lists no tokens."""
        ended = self.tokens[-1:] == (END,)
        text = "".join(self.tokens[:-1] if ended else self.tokens)
        return Completion(((text,) if text else ()) + ((END,) if ended else ()), None)


class Endpoint(Server):
    """A server for completions and chat, by its address; `flag` is the option that gave the address."""

    def __init__(self, flag: str, url: str, key: str | None = None, model: str | None = None, timeout: float = 120.0):
        if "://" not in url:
            place = url.rpartition("@")[2]  # without the password before it
            raise Unreadable(
                "address", f"{flag} {place}: write the server's address, for example http://localhost:8000."
            )
        super().__init__(url, key, timeout, flag)
        self.flag = flag
        self.model = model or self._first_model()

    def complete(self, prompt: str, **options: Any) -> Completion:
        """One answer to a prompt."""
        body = {"model": self.model, "prompt": prompt, "n": 1, "stream": False, **options}
        reply = self.post("/v1/completions", body, self.timeout)
        try:
            choice = reply["choices"][0]
            if not isinstance(choice["text"], str):
                raise TypeError
            return answer_of(choice, choice["text"], options["max_tokens"])
        except (LookupError, TypeError, ValueError):
            raise Unreadable("answer", f"{self.where}: the answer is not a completion: {brief(reply)}") from None

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """The chunks of an answer to a conversation as they arrive; closing the iterator closes the connection."""
        body = {"model": self.model, "messages": messages, "stream": True, **options}
        for line in self.events("/v1/chat/completions", body):
            if not line.startswith(b"data:"):
                continue
            if (data := line[5:].strip()) == b"[DONE]":
                return
            chunk = json.loads(data)
            if "error" in chunk:
                raise Unreadable("answer", f"{self.where}: the answer broke off: {error_message(data)}")
            yield chunk
        raise Unreadable("answer", f"{self.where}: the answer broke off without a reason.")

    def live(self) -> dict[str, Any] | None:
        """Live figures of an Augury server; None if it is another kind of server."""
        found = self.json("/augury/live", self.timeout)
        return found if isinstance(found, dict) and "num_spec_tokens" in found else None

    def drafts(self) -> float | None:
        """Drafts since the server started, from its metrics; None if it does not export them."""
        return self.counters(DRAFTS)[0]

    def counters(self, *names: str) -> list[float | None]:
        """Counters from the server's metrics, each summed over its labels; None for any that is not exported."""
        try:
            told = self.metrics().body.decode("utf-8", "replace")
        except Unreadable:
            return [None] * len(names)
        found = [re.findall(COUNTER.format(name=re.escape(name)), told, re.MULTILINE) for name in names]
        return [sum(map(float, values)) if values else None for values in found]

    def _first_model(self) -> str:
        names = listed_models(self._json("/v1/models", None, self.timeout))
        if not names:
            raise Unreadable("model", f"{self.where}: it lists no model under /v1/models; name one with --model.")
        return next(iter(names))

    def _refused(self, path: str, reply: httpx.Response, said: bytes) -> Unreadable:
        if reply.status_code != 404 or not path.endswith("/completions"):
            return super()._refused(path, reply, said)
        names = list(self.models(self.timeout))
        offers = f"it offers {', '.join(names[:5])}; name one with --model" if names else error_message(said)
        return Unreadable("not-found", f"{self.where}: no model {self.model!r}, or no {path} (HTTP 404); {offers}.")


def answer_of(choice: dict[str, Any], text: str, longest: int) -> Completion:
    """One choice of a completion; a text without listed tokens counts as one token."""
    told = choice.get("logprobs") or {}
    tokens = told.get("tokens")
    ended = choice.get("finish_reason") == "stop"
    if not tokens and text:
        return Completion((text, END) if ended else (text,), None)
    tokens = [str(token) for token in tokens or ()]
    likely = told.get("top_logprobs")
    if likely:
        own = told.get("token_logprobs") or [None] * len(tokens)
        likely = tuple(_numbers(entry, token, o) for entry, token, o in zip(likely, tokens, own, strict=True))
    whole = (*tokens, END) if ended and len(tokens) < longest else tuple(tokens)
    return Completion(whole, likely or None)


def _numbers(entry: dict[str, Any] | None, token: str, own: float | None) -> dict[str, float]:
    found = {str(name): float(value) for name, value in (entry or {}).items() if value is not None}
    if own is not None:
        found.setdefault(token, float(own))
    return {name: value for name, value in found.items() if not math.isnan(value)}
