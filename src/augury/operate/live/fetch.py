"""One request to a live server: its answer, or one sentence that says why none came."""

from __future__ import annotations

import json
import queue
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
import zlib
from http.client import HTTPException, IncompleteRead
from typing import Any, NamedTuple

from augury.config.errors import ConfigError

LARGEST = 16_000_000  # bytes after unpacking; vLLM's metrics are under one million
PIECE = 65_536


def shown(text: str) -> str:
    """A server's words, which must not steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class Unreadable(ConfigError):
    """A server that could not be read; `kind` is one word for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Reply(NamedTuple):
    """What a server said."""

    body: bytes
    kind: str  # its Content-Type, in small letters
    seconds: float


class Server:
    """A server by its address: a base, or the address of its metrics."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 5.0) -> None:
        whole = url.strip() if "://" in url else f"http://{url.strip()}"
        whole, _, self._query = whole.partition("?")
        self.base = whole.rstrip("/").removesuffix("/metrics").removesuffix("/v1").rstrip("/")
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", self.base):
            raise Unreadable("address", f"{url!r} is no address; write for example http://localhost:8000.")
        self._key, self.timeout = key, timeout

    def metrics(self) -> Reply:
        """The answer of /metrics."""
        return self._ask("/metrics" + (f"?{self._query}" if self._query else ""), None, self.timeout)

    def json(self, path: str, timeout: float = 1.0) -> Any:
        """The JSON at a path, or nothing where there is none: what only adds to the picture may be missing."""
        try:
            return json.loads(self._ask(path, None, min(timeout, self.timeout)).body)
        except (Unreadable, ValueError, RecursionError):
            return None

    def models(self, timeout: float = 1.0) -> dict[str, str]:
        """What /v1/models lists, each with who is said to own it."""
        told = self.json("/v1/models", timeout)
        listed = told.get("data") if isinstance(told, dict) else None
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return {one["id"]: str(one.get("owned_by", "")) for one in entries if isinstance(one.get("id"), str)}

    def post(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        """The JSON that answers a request."""
        reply = self._ask(path, body, timeout)
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError):
            raise Unreadable("json", f"{self.base}{path} does not answer in JSON.") from None

    def _ask(self, path: str, body: dict[str, Any] | None, timeout: float) -> Reply:
        """In a thread of its own, since neither a name that is looked up nor a head that drips keeps to a timeout."""
        answers: queue.SimpleQueue[Reply | Unreadable] = queue.SimpleQueue()

        def fetch() -> None:
            try:
                answers.put(self._fetch(path, body, timeout))
            except Unreadable as error:
                answers.put(error)
            except Exception as error:  # whatever a strange answer does to the library, one line is what is wanted
                answers.put(self._unreachable(error))

        threading.Thread(target=fetch, daemon=True).start()
        try:
            answer = answers.get(timeout=timeout + 0.5)
        except queue.Empty:
            raise self._late(timeout) from None
        if isinstance(answer, Unreadable):
            raise answer
        return answer

    def _fetch(self, path: str, body: dict[str, Any] | None, timeout: float) -> Reply:
        headers = {"Accept": "text/plain, application/json", "Accept-Encoding": "gzip"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        begun = time.monotonic()
        try:
            request = urllib.request.Request(self.base + path, data, headers)
            if self._key:  # unredirected: another host that we are sent on to must not see it
                request.add_unredirected_header("Authorization", f"Bearer {self._key}")
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                raw = self._read(reply, begun + timeout, timeout)
                packed = (reply.headers.get("Content-Encoding") or "").lower() == "gzip"
                kind = (reply.headers.get("Content-Type") or "").lower()
            return Reply(self._unpacked(raw) if packed else raw, kind, time.monotonic() - begun)
        except Unreadable:
            raise
        except urllib.error.HTTPError as error:
            raise self._refused(path, error.code) from None
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable(error, timeout) from None

    def _read(self, reply: Any, until: float, timeout: float) -> bytes:
        pieces, size = [], 0
        while piece := reply.read1(PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST:
                raise self._large()
            if time.monotonic() > until:
                raise self._late(timeout)
        if reply.length:  # read1 does not mind when fewer bytes come than were promised
            raise self._cut()
        return b"".join(pieces)

    def _unpacked(self, raw: bytes) -> bytes:
        unpacker = zlib.decompressobj(31)
        try:
            text = unpacker.decompress(raw, LARGEST + 1)
        except zlib.error:
            raise Unreadable("malformed", f"{self.base}: the answer says it is gzip and is not.") from None
        if len(text) > LARGEST:
            raise self._large()
        if not unpacker.eof:
            raise self._cut()
        return text

    def _large(self) -> Unreadable:
        return Unreadable(
            "too-large", f"{self.base}: the answer is over {LARGEST // 10**6} MB; no metrics are that long."
        )

    def _cut(self) -> Unreadable:
        return Unreadable("truncated", f"{self.base}: the answer was cut off before its end; try again.")

    def _late(self, timeout: float) -> Unreadable:
        return Unreadable(
            "timeout", f"{self.base} did not answer within {timeout:g} s; is it stuck, or --timeout short?"
        )

    def _refused(self, path: str, code: int) -> Unreadable:
        if code in (401, 403):
            given = "refuses this key" if self._key else "wants a key"
            return Unreadable(
                "forbidden", f"{self.base}{path} {given} (HTTP {code}); give the right one with --api-key."
            )
        if code == 404 and path.startswith("/metrics"):
            return Unreadable(
                "not-found",
                f"{self.base}{path} does not exist (HTTP 404); is that the API server's port, and are its metrics on?",
            )
        return Unreadable("http", f"{self.base}{path} answers HTTP {code}.")

    def _unreachable(self, error: Exception, timeout: float | None = None) -> Unreadable:
        reason: Any = getattr(error, "reason", None) or error
        if isinstance(reason, (TimeoutError, socket.timeout)):
            return self._late(timeout or self.timeout)
        if isinstance(reason, ConnectionRefusedError):
            return Unreadable(
                "refused", f"{self.base}: nobody listens there (connection refused); is the server running?"
            )
        if isinstance(reason, socket.gaierror):
            return Unreadable("dns", f"{self.base}: this name is not known (DNS: {reason.strerror}).")
        if isinstance(reason, ssl.SSLError):
            why = (
                "its certificate is not trusted"
                if "CERTIFICATE" in str(reason)
                else "is it http:// rather than https://?"
            )
            return Unreadable("tls", f"{self.base}: no TLS connection; {why}")
        if isinstance(reason, IncompleteRead):
            return self._cut()
        said = shown(" ".join(str(reason).split())[:120]) or type(reason).__name__
        return Unreadable("unreachable", f"{self.base} cannot be read ({said}).")
