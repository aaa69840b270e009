"""A small OpenAI server that keeps its promises, or breaks exactly those it is told to.

python promising.py PORT [BREAK ...]
"""

from __future__ import annotations

import json
import math
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = (" a", " b", " c", " d", " e", " f", " <g>", "\n")
PERSON = '{"name": "Ada", "age": 36, "tags": ["a", "b"]}'
PINGS = 4_000_000
SHORT, LONG = 900, 1300  # characters: what is longer than the first is replayed, than the second long


class Promising:
    """Its law depends on the prompt and the place; `breaks` names the promises that it does not keep."""

    def __init__(self, *breaks: str, owner: str = "vllm", version: str = "0.28.0", tie: float = 0.0) -> None:
        self.breaks = set(breaks)
        self.owner, self.version = owner, version
        self.tie = tie  # added to the second-best score at the fourth place, where the two best are level
        self.crowded = False  # whether requests come side by side; the test says so
        self.drafts, self.preemptions = 0, 0
        self.refused: dict[str, int] = {}  # fields of a request, and the status that refuses them
        self.pings = b""  # what it sends for ever where a stream is asked for
        self.seen: Counter[str] = Counter()
        self.lock = threading.Lock()

    def law(self, prompt: str, place: int) -> dict[str, float]:
        """Log-probabilities; the two best are level at the fourth place, and far apart elsewhere."""
        rng = random.Random(f"{prompt}|{place}")
        order = rng.sample(TOKENS, len(TOKENS))
        scores = {token: -1.0 * i for i, token in enumerate(order)}
        if place == 3:
            scores[order[1]] = scores[order[0]] + self.tie
        whole = math.log(sum(map(math.exp, scores.values())))
        return {token: score - whole for token, score in scores.items()}

    def wrong(self, prompt: str) -> bool:
        """Whether this request gets another text than it should."""
        book = "the lamp was lit" in prompt
        return (
            ("greedy" in self.breaks and prompt.startswith("The sky"))
            or ("replay" in self.breaks and SHORT < len(prompt) < LONG and self.seen[prompt] > 1)
            or ("long" in self.breaks and len(prompt) > LONG)
            or ("concurrency" in self.breaks and self.crowded and not book)
            or ("preemption" in self.breaks and self.crowded and prompt.startswith("Logbook"))
        )

    def choice(self, body: dict[str, Any], prompt: str, index: int) -> dict[str, Any]:
        """One completion with its log-probabilities."""
        seed = f"{body.get('seed')}|{0 if 'n' in self.breaks else index}|{prompt}"
        rng = random.Random(seed)
        laws = [self.law(prompt, place) for place in range(body["max_tokens"])]
        if self.wrong(prompt):  # wrong, and sure of it
            best, worst = (find(laws[1], key=lambda token: laws[1][token]) for find in (max, min))
            laws[1] |= {best: laws[1][worst], worst: laws[1][best]}
        tokens = []
        for law in laws:
            sampled = rng.choices(list(law), [math.exp(v) for v in law.values()])[0]
            tokens.append(sampled if body.get("temperature") else max(law, key=lambda token: law[token]))
        own = [law[token] for law, token in zip(laws, tokens, strict=True)]
        if "logprobs" in self.breaks:
            own[-1] -= 0.5
        if "logprobs-apart" in self.breaks:
            own = [value - 1 for value in own]
            laws = [{token: value - 1 for token, value in law.items()} for law in laws]
        tops = [dict(sorted(law.items(), key=lambda item: -item[1])[:5]) for law in laws]
        told = {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops}
        return {"index": index, "text": "".join(tokens), "finish_reason": "length", "logprobs": told}

    def complete(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a stream, or one for the whole."""
        prompt = body["prompt"]
        count = 1 if "n-count" in self.breaks else body.get("n", 1)
        choices = [self.choice(body, prompt, index) for index in range(count)]
        if not body.get("stream"):
            yield {"choices": [one if "logprobs" in body else {**one, "logprobs": None} for one in choices]}
            return
        told = choices[0]["logprobs"]
        for place, token in enumerate(told["tokens"]):
            piece = {name: [values[place]] for name, values in told.items()} if "logprobs" in body else None
            lost = "stream" in self.breaks and place == 4
            yield {"choices": [{"index": 0, "text": "" if lost else token, "logprobs": piece}]}
        yield {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}

    def chat(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A tool call, JSON, or the text that completions would give."""
        prompt = body["messages"][0]["content"]
        if "tools" in body:
            yield from self.call(body, prompt)
            return
        text, told = PERSON, None
        if "response_format" not in body:
            choice = self.choice(body, prompt, 0)
            text, told = choice["text"], choice["logprobs"]
        elif "json" in self.breaks:
            text = text[:-3]
        elif "schema" in self.breaks:
            text = '{"name": "Ada", "age": "36", "tags": []}'
        listed = (
            [
                {"token": t, "logprob": o, "top_logprobs": [{"token": n, "logprob": v} for n, v in top.items()]}
                for t, o, top in zip(
                    *(told[name] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True
                )
            ]
            if told and body.get("logprobs")
            else []
        )
        endless = "endless" in self.breaks and "response_format" in body
        text, end = (text[:9], "length") if endless else (text, "stop" if told is None else "length")
        if not body.get("stream"):
            message = {"role": "assistant", "content": text}
            yield {"choices": [{"message": message, "finish_reason": end, "logprobs": {"content": listed}}]}
            return
        for place, entry in enumerate(listed):
            lost = "chat-stream" in self.breaks and place == 4
            delta = {"content": "" if lost else entry["token"]}
            yield {"choices": [{"delta": delta, "logprobs": {"content": [entry]}}]}
        yield {"choices": [{"delta": {}, "finish_reason": end}]}

    def call(self, body: dict[str, Any], prompt: str) -> Iterator[dict[str, Any]]:
        """The forced call; its arguments in three pieces where it is streamed."""
        city = next(name for name in ("Paris", "Rome", "Oslo") if name in prompt)
        pieces = ['{"city": "', f'{city}", "days', '": 3}']
        if "tools" in self.breaks:
            pieces[1] = f"{city}"
        if "tools-text" in self.breaks:
            yield {"choices": [{"message": {"content": "Let me see."}, "finish_reason": "stop"}]}
        elif not body.get("stream"):
            function = {"name": "get_weather", "arguments": "".join(pieces)}
            yield {"choices": [{"message": {"tool_calls": [{"function": function}]}, "finish_reason": "tool_calls"}]}
        else:
            if "tools-stream" in self.breaks:
                pieces[1] = 'Rome", "days' if city == "Paris" else pieces[1]
            for place, piece in enumerate(pieces):
                function = {"arguments": piece, **({"name": "get_weather"} if place == 0 else {})}
                yield {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": function}]}}]}
            yield {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}

    def metrics(self) -> bytes:
        """Counters by vLLM's names."""
        counted = {"vllm:spec_decode_num_drafts": self.drafts, "vllm:num_preemptions": self.preemptions}
        return "".join(f'{name}_total{{engine="0"}} {float(value)}\n' for name, value in counted.items()).encode()


def handler(server: Promising) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # head and body in one packet

        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, code: int, value: Any, kind: str = "application/json") -> None:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def ping(self) -> None:
            """Signs of life and no answer, for longer than a client may stay."""
            self.close_connection = True  # there is no length
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            with suppress(OSError):
                for _ in range(PINGS):
                    self.wfile.write(server.pings)
                    self.wfile.flush()

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.answer(200, {"data": [{"id": "toy", "owned_by": server.owner}]})
            elif self.path == "/version":
                self.answer(200, {"version": server.version})
            elif self.path == "/metrics" and "silent" not in server.breaks:
                self.answer(200, server.metrics())
            else:
                self.answer(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "hangs" in server.breaks:
                threading.Event().wait()  # for ever
            for name, status in server.refused.items():
                if name in body:
                    self.answer(status, {"error": {"message": f"{name} is not for me"}})
                    return
            with server.lock:
                server.drafts += "drafts" not in server.breaks
                server.preemptions += server.crowded
                if "prompt" in body:
                    server.seen[body["prompt"]] += 1
            if body.get("stream") and server.pings:
                self.ping()
                return
            chunks = list(server.chat(body) if "messages" in body else server.complete(body))
            if not body.get("stream"):
                self.answer(200, chunks[0])
                return
            events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
            self.answer(200, "".join([*events, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    return Handler


@contextmanager
def serving(server: Promising) -> Iterator[str]:
    """Its address while it runs."""
    inner = _bound(server, 0)
    thread = threading.Thread(target=inner.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{inner.server_port}"
    finally:
        inner.shutdown()
        inner.server_close()
        thread.join()


def _bound(server: Promising, port: int) -> ThreadingHTTPServer:
    inner = ThreadingHTTPServer(("127.0.0.1", port), handler(server), bind_and_activate=False)
    inner.request_queue_size = 64  # more than are ever in flight
    inner.server_bind()
    inner.server_activate()
    return inner


if __name__ == "__main__":
    _bound(Promising(*sys.argv[2:]), int(sys.argv[1])).serve_forever()
