"""An OpenAI-compatible server, whole answers and streams, through the standard library alone."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.tools.shared.fetch import address_of

END = "(end)"  # stands for the token that ended an answer, which servers do not show
DRAFTS = re.compile(r"^vllm:spec_decode_num_drafts(?:_total)?(?:\{[^}]*\})? +([0-9.eE+]+)", re.MULTILINE)


class EndpointError(ConfigError):
    """A server that does not do what is asked of it; the message is one line that names it and the fix."""


class Answer(NamedTuple):
    """One completion."""

    tokens: tuple[str, ...]  # as texts; the whole text as one if the server does not say
    likely: tuple[dict[str, float], ...] | None  # log-probabilities of the likeliest tokens at each place, if offered

    def joined(self) -> Answer:
        """The same as one text, to be held against a server that names no tokens."""
        ended = self.tokens[-1:] == (END,)
        text = "".join(self.tokens[:-1] if ended else self.tokens)
        return Answer(((text,) if text else ()) + ((END,) if ended else ()), None)


class Endpoint:
    """A server, by its address."""

    def __init__(self, flag: str, url: str, key: str | None = None, model: str | None = None, timeout: float = 120.0):
        self.flag = flag
        self.base = url.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        if not re.match(r"https?://[^/\s]", self.base):
            raise ConfigError(f"{flag} {url}: write the server's address, for example http://localhost:8000.")
        self.base, self._login = address_of(self.base)  # a name and a password in the address are sent, never shown
        self._key, self._timeout = key, timeout
        self.model = model or self._first_model()

    def complete(self, prompt: str, **options: Any) -> Answer:
        """One answer to a prompt."""
        body = {"model": self.model, "prompt": prompt, "n": 1, "stream": False, **options}
        reply = self._call("/v1/completions", body)
        try:
            choice = reply["choices"][0]
            if not isinstance(choice["text"], str):
                raise TypeError
            return _answer(choice, choice["text"], options["max_tokens"])
        except (LookupError, TypeError, ValueError):
            raise EndpointError(f"{self.flag} {self.base}: the answer is not a completion: {_short(reply)}") from None

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """The chunks of an answer to a conversation, as they come; closing the iterator leaves the server."""
        path, body = "/v1/chat/completions", {"model": self.model, "messages": messages, "stream": True, **options}
        with self._open(path, body) as reply:
            for line in reply:
                if not line.startswith(b"data:"):
                    continue
                if (data := line[5:].strip()) == b"[DONE]":
                    return
                chunk = json.loads(data)
                if "error" in chunk:
                    raise EndpointError(f"{self.flag} {self.base}: the answer broke off: {_message(data)}")
                yield chunk
        raise EndpointError(f"{self.flag} {self.base}: the answer broke off without a reason.")

    def live(self) -> dict[str, Any] | None:
        """Figures of an Augury server; None if it is another's."""
        try:
            found = self._call("/augury/live", None)
        except EndpointError:
            return None
        return found if isinstance(found, dict) and "num_spec_tokens" in found else None

    def drafts(self) -> float | None:
        """Drafts made since the server started, from its metrics; None if it does not tell."""
        try:
            found = DRAFTS.findall(self._read("/metrics", None).decode("utf-8", "replace"))
        except EndpointError:
            return None
        return sum(map(float, found)) if found else None

    def _first_model(self) -> str:
        names = self._models()
        if not names:
            raise EndpointError(f"{self.flag} {self.base}: it lists no model under /v1/models; name one with --model.")
        return names[0]

    def _models(self) -> list[str]:
        reply = self._call("/v1/models", None)
        listed = reply.get("data") if isinstance(reply, dict) else None
        return [str(entry["id"]) for entry in listed or [] if isinstance(entry, dict) and "id" in entry]

    def _call(self, path: str, body: dict[str, Any] | None) -> Any:
        raw = self._read(path, body)
        try:
            return json.loads(raw)
        except ValueError:
            said = _short(raw.decode("utf-8", "replace"))
            raise EndpointError(f"{self.flag} {self.base}{path} does not answer in JSON: {said}") from None

    def _read(self, path: str, body: dict[str, Any] | None) -> bytes:
        with self._open(path, body) as reply:
            return reply.read()

    @contextmanager
    def _open(self, path: str, body: dict[str, Any] | None) -> Iterator[HTTPResponse]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/plain"}
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.base + path, data, headers)
            if self._key or self._login:  # unredirected: another host that we are sent on to must not see it
                request.add_unredirected_header("Authorization", self._login or f"Bearer {self._key}")
            with urllib.request.urlopen(request, timeout=self._timeout) as reply:
                yield reply
        except urllib.error.HTTPError as error:
            raise self._refusal(path, error.code, error.read(4000)) from None
        except TimeoutError:
            raise EndpointError(self._silent()) from None
        except EndpointError:
            raise
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise EndpointError(self._silent()) from None
            said = _short(str(reason)) or type(reason).__name__
            raise EndpointError(f"{self.flag} {self.base} cannot be reached ({said}); is the server running?") from None

    def _silent(self) -> str:
        return f"{self.flag} {self.base} did not answer within {self._timeout:g} s; raise --timeout, or ask for less."

    def _refusal(self, path: str, code: int, raw: bytes) -> EndpointError:
        said, where = _message(raw), f"{self.flag} {self.base}"
        if code in (401, 403):
            given = "refuses this key" if self._key else "wants a key"
            return EndpointError(f"{where} {given} (HTTP {code}); give the right one with --api-key.")
        if code == 404 and path in ("/v1/completions", "/v1/chat/completions"):
            try:
                names = self._models()
            except EndpointError:
                names = []
            offers = f"it offers {', '.join(names[:5])}; name one with --model" if names else said
            return EndpointError(f"{where}: no model {self.model!r}, or no {path} (HTTP 404); {offers}.")
        return EndpointError(f"{where}{path}: HTTP {code}: {said}")


def _answer(choice: dict[str, Any], text: str, longest: int) -> Answer:
    told = choice.get("logprobs") or {}
    tokens = told.get("tokens")
    ended = choice.get("finish_reason") == "stop"
    if not tokens and text:
        return Answer((text, END) if ended else (text,), None)
    tokens = [str(token) for token in tokens or ()]
    likely = told.get("top_logprobs")
    if likely:
        own = told.get("token_logprobs") or [None] * len(tokens)
        likely = tuple(_numbers(entry, token, o) for entry, token, o in zip(likely, tokens, own, strict=True))
    whole = (*tokens, END) if ended and len(tokens) < longest else tuple(tokens)
    return Answer(whole, likely or None)


def _numbers(entry: dict[str, Any] | None, token: str, own: float | None) -> dict[str, float]:
    found = {str(name): float(value) for name, value in (entry or {}).items() if value is not None}
    if own is not None:
        found.setdefault(token, float(own))
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _message(raw: bytes) -> str:
    """What a server says of an error, in whichever of the usual shapes."""
    text = raw.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        found = found.get("error", found.get("detail", found)) if isinstance(found, dict) else found
        text = found.get("message", text) if isinstance(found, dict) else str(found)
    except ValueError:
        pass
    return _short(str(text)) or "no reason given"


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:197]}..."
