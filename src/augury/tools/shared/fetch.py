"""One request to a live server: its answer, or one sentence that says why none came."""

from __future__ import annotations

import base64
import json
import queue
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from http.client import BadStatusLine, HTTPException, IncompleteRead
from typing import Any, NamedTuple

from augury.config.errors import ConfigError

LARGEST = 16_000_000  # bytes after unpacking; vLLM's metrics are under one million
PIECE = 65_536
LAST_PORT = 65_535
TLS_ALERTS = ("\x15\x03\x01", "\x15\x03\x02", "\x15\x03\x03")  # how an answer in TLS begins


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


def address_of(url: str) -> tuple[str, str | None]:
    """An address without user and password, which may be printed, and the Authorization header that they make."""
    whole = url.strip() if "://" in url else f"http://{url.strip()}"
    scheme, _, rest = whole.partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    secret, at, host = place.rpartition("@")
    base = f"{scheme}://{host}{rest[len(place) :]}".rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+([/?#]\S*)?", base):
        shown_url = url if "@" not in url else f"...@{url.rpartition('@')[2]}"
        raise Unreadable("address", f"{shown_url!r} is no address; write for example http://localhost:8000.")
    port = re.search(r"(?<!\[):([^\]:]*)$", host)
    if not at and "@" in rest and port:
        raise Unreadable("address", "In a user or a password / ? # and @ are written %2F %3F %23 and %40.")
    if port and not re.fullmatch(r"[0-9]*", port[1]):
        raise Unreadable("address", f"{scheme}://{host[: port.start()]}: what follows the colon is no port.")
    if port and int(port[1] or 0) > LAST_PORT:
        raise Unreadable("address", f"{base}: there is no port {port[1]}; the last one is {LAST_PORT}.")
    if not at:
        return base, None
    user, _, password = secret.partition(":")
    pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
    return base, f"Basic {base64.b64encode(pair.encode()).decode()}"


class Server:
    """A server by its address: a base, or the address of its metrics."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 5.0) -> None:
        whole, basic = address_of(url)
        whole, _, self._query = whole.partition("?")
        self.base = whole.rstrip("/").removesuffix("/metrics").removesuffix("/v1").rstrip("/")
        # Who writes a password into the address means this server; a key may come from the environment, for any.
        self._authorization = basic or (f"Bearer {key}" if key else None)
        self.timeout = timeout

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
            if self._authorization:  # unredirected: another host that we are sent on to must not see it
                request.add_unredirected_header("Authorization", self._authorization)
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                raw = self._read(reply, begun + timeout, timeout)
                packed = (reply.headers.get("Content-Encoding") or "").lower() == "gzip"
                kind = (reply.headers.get("Content-Type") or "").lower()
            return Reply(self._unpacked(raw) if packed else raw, kind, time.monotonic() - begun)
        except Unreadable:
            raise
        except urllib.error.HTTPError as error:
            raise self._refused(path.partition("?")[0], error) from None
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

    def _refused(self, path: str, error: urllib.error.HTTPError) -> Unreadable:
        code, told = error.code, self._authorization or ""
        if code in (401, 403):
            basic = told.startswith("Basic") or "basic" in (error.headers.get("WWW-Authenticate") or "").lower()
            what, fix = ("user and password", "http://USER:PASSWORD@HOST") if basic else ("key", "--api-key")
            given = f"refuses this {what}" if told else f"wants a {what}"
            return Unreadable("forbidden", f"{self.base}{path} {given} (HTTP {code}); give the right one with {fix}.")
        if code == 404 and path.startswith("/metrics"):
            return Unreadable(
                "not-found",
                f"{self.base}{path} does not exist (HTTP 404); is that the API server's port, and are its metrics on?",
            )
        if code == 400 and self.base.startswith("http://") and b"https" in _beginning(error).lower():
            return self._wants_tls()
        return Unreadable("http", f"{self.base}{path} answers HTTP {code}.")

    def _wants_tls(self) -> Unreadable:
        return Unreadable("tls", f"{self.base}: it speaks TLS, not plain HTTP; write https:// instead of http://.")

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
            return Unreadable("tls", f"{self.base}: no TLS connection; {_tls_fault(reason)}")
        if isinstance(reason, IncompleteRead):
            return self._cut()
        if isinstance(reason, BadStatusLine) and str(reason)[:3] in TLS_ALERTS:
            return self._wants_tls()
        said = shown(" ".join(str(reason).split())[:120]) or type(reason).__name__
        hung_up = isinstance(reason, ConnectionError) and self.base.startswith("http://")
        hint = "; if it speaks TLS, write https://" if hung_up else ""
        return Unreadable("unreachable", f"{self.base} cannot be read ({said}){hint}.")


def _beginning(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(2000)
    except (OSError, HTTPException, ValueError):
        return b""


def _tls_fault(error: ssl.SSLError) -> str:
    """What is wrong with a connection over TLS, and the way out."""
    if "CERTIFICATE" not in str(error):
        return "is it http:// rather than https://?"
    why = getattr(error, "verify_message", "")
    if "mismatch" in why or "expired" in why:
        return f"its certificate is not trusted ({why.rstrip('.')})."
    said = f" ({why})" if why else ""
    return f"its certificate is not trusted{said}; if it is your own, name its file: SSL_CERT_FILE=ca.pem augury ..."
