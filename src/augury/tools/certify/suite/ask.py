"""The HTTP side of the suites: whole answers and streams of one server, with the log-probabilities it offers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from augury.tools.certify.suite.cells import Broken, NotCertified
from augury.tools.shared.endpoint import Completion, Endpoint, answer_of
from augury.tools.shared.http import Unreadable, brief, error_message

LIKELY = 5  # log-probabilities asked for; OpenAI's maximum
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
UNKNOWN_TO_SERVER = (400, 404, 405, 415, 422, 501)  # statuses that say "I do not offer this"
Given = TypeVar("Given")
Made = TypeVar("Made")


class Said(NamedTuple):
    """One answer: its text, and the tokens by which it is compared."""

    text: str
    answer: Completion
    finish: str  # the server's finish_reason
    choice: dict[str, Any]  # as the server sent it; of a stream, assembled


def complaint(error: Unreadable) -> Exception:
    """What a failed request means for a cell: a refused request is not offered, anything else is a fault."""
    if error.code in UNKNOWN_TO_SERVER or error.kind == "not-found":
        return NotCertified(str(error))
    return Broken(str(error))


class Peer:
    """One of the two servers."""

    def __init__(self, endpoint: Endpoint, max_tokens: int, logprobs: bool = True) -> None:
        self.endpoint = endpoint
        self.max_tokens = max_tokens
        self._wants_logprobs = logprobs

    @cached_property
    def scores(self) -> bool:
        """Whether completions come with log-probabilities; a server may refuse to give them."""
        return self._wants_logprobs and self._takes(COMPLETIONS, {"prompt": "1", "logprobs": LIKELY})

    @cached_property
    def chat_scores(self) -> bool:
        """Whether chat completions come with log-probabilities."""
        asked = {"messages": said_by_user("1"), "logprobs": True, "top_logprobs": LIKELY}
        return self._wants_logprobs and self._takes(CHAT, asked)

    @cached_property
    def neutral(self) -> dict[str, float]:
        """Options that switch off penalties, by the names the server takes; llama-cpp-python's default is 1.1."""
        names = ("repetition_penalty", "repeat_penalty")
        return {name: 1.0 for name in names if self._takes(COMPLETIONS, {"prompt": "1", name: 1.0})}

    def _takes(self, path: str, asked: dict[str, Any]) -> bool:
        body = {"model": self.endpoint.model, "max_tokens": 1, "temperature": 0, **asked}
        try:
            self.endpoint.post(path, body, self.endpoint.timeout)
        except Unreadable as error:
            if error.code is None:
                raise complaint(error) from None
            return False
        return True

    def complete(self, prompt: str, **options: Any) -> list[Said]:
        """The answers to a prompt; greedy unless the options say otherwise."""
        reply = self._post(COMPLETIONS, self._completion(prompt, options))
        longest = options.get("max_tokens", self.max_tokens)
        return [self._said(choice, str(choice.get("text") or ""), longest) for choice in _choices(reply)]

    def greedy(self, prompt: str) -> Said:
        """The one greedy answer to a prompt."""
        return self.complete(prompt)[0]

    def stream(self, prompt: str) -> Said:
        """The greedy answer to a prompt, assembled from a stream."""
        whole: dict[str, Any] = {"text": "", "logprobs": {}}
        for chunk in self._events(COMPLETIONS, self._completion(prompt, {})):
            for choice in chunk.get("choices") or ():
                whole["text"] += choice.get("text") or ""
                for name, values in (choice.get("logprobs") or {}).items():
                    whole["logprobs"].setdefault(name, []).extend(values or ())
                whole["finish_reason"] = choice.get("finish_reason") or whole.get("finish_reason")
        return self._said(whole, whole["text"], self.max_tokens)

    def chat(self, prompt: str, **options: Any) -> Said:
        """The greedy answer to a chat request."""
        [choice, *_] = _choices(self._post(CHAT, self._conversation(prompt, options)))
        message = choice.get("message") or {}
        text = str(message.get("content") or "")
        return Said(text, chat_answer(choice, text), str(choice.get("finish_reason")), choice)

    def chat_stream(self, prompt: str, **options: Any) -> Said:
        """The greedy answer to a chat request, assembled from a stream."""
        content, calls, listed, finish = "", dict[int, dict[str, str]](), list[Any](), None
        for chunk in self._events(CHAT, self._conversation(prompt, options)):
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta") or {}
                content += delta.get("content") or ""
                listed += (choice.get("logprobs") or {}).get("content") or ()
                finish = choice.get("finish_reason") or finish
                for number, part in enumerate(delta.get("tool_calls") or ()):
                    call = calls.setdefault(part.get("index", number), {"name": "", "arguments": ""})
                    for name in call:
                        call[name] += (part.get("function") or {}).get(name) or ""
        message = {"content": content, "tool_calls": [{"function": call} for _, call in sorted(calls.items())]}
        whole = {"message": message, "logprobs": {"content": listed}, "finish_reason": finish}
        return Said(content, chat_answer(whole, content), str(finish), whole)

    def _completion(self, prompt: str, options: dict[str, Any]) -> dict[str, Any]:
        scores = {"logprobs": LIKELY} if self.scores else {}
        return self._body({"prompt": prompt, **scores, **options})

    def _conversation(self, prompt: str, options: dict[str, Any]) -> dict[str, Any]:
        scores = {"logprobs": True, "top_logprobs": LIKELY} if self.chat_scores else {}
        return self._body({"messages": said_by_user(prompt), **scores, **options})

    def _body(self, asked: dict[str, Any]) -> dict[str, Any]:
        usual = {"max_tokens": self.max_tokens, "temperature": 0, "top_p": 1, "seed": 1}
        return {"model": self.endpoint.model, **usual, **self.neutral, **asked}

    def _said(self, choice: dict[str, Any], text: str, longest: int) -> Said:
        try:
            return Said(text, answer_of(choice, text, longest), str(choice.get("finish_reason")), choice)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise Broken(f"the answer cannot be read: {brief(choice)}") from None

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return self.endpoint.post(path, body, self.endpoint.timeout)
        except Unreadable as error:
            raise complaint(error) from None

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a stream, up to its [DONE]; a stream of nothing but keep-alives ends with the timeout."""
        try:
            for line in self.endpoint.events(path, {**body, "stream": True}, self.endpoint.timeout):
                if not line.startswith(b"data:"):
                    continue
                if (data := line[5:].strip()) == b"[DONE]":
                    return
                chunk = json.loads(data)
                if "error" in chunk:
                    raise Broken(f"the stream broke off: {error_message(data)}")
                yield chunk
        except Unreadable as error:
            raise complaint(error) from None
        except (ValueError, TypeError):
            raise Broken("a chunk of the stream is no JSON object") from None
        raise Broken("the stream ended without [DONE]")


def said_by_user(prompt: str) -> list[dict[str, str]]:
    """A conversation with one user message."""
    return [{"role": "user", "content": prompt}]


def chat_answer(choice: dict[str, Any], text: str) -> Completion:
    """What a chat's choice is compared by: its tokens where they are listed, otherwise the text as a single token."""
    listed = (choice.get("logprobs") or {}).get("content") or []
    try:
        tokens = tuple(str(one["token"]) for one in listed)
        likely = tuple(
            {str(top["token"]): float(top["logprob"]) for top in (*(one.get("top_logprobs") or ()), one)}
            for one in listed
        )
    except (LookupError, TypeError, ValueError):
        raise Broken(f"the log-probabilities cannot be read: {brief(listed)}") from None
    return Completion(tokens, likely) if tokens else Completion((text,) if text else (), None)


def at_once(work: Callable[[Given], Made], every: Sequence[Given]) -> list[Made]:
    """Map with a thread for each item, all at the same time."""
    with ThreadPoolExecutor(max_workers=max(1, len(every))) as pool:
        return list(pool.map(work, every))


def _choices(reply: Any) -> list[dict[str, Any]]:
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not choices or not all(isinstance(one, dict) for one in choices):
        raise Broken(f"the answer has no choices: {brief(reply)}")
    return choices
