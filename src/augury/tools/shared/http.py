"""The HTTP client of all tools: a server's response, or one sentence that says why there is none.

Only `tools/load/stream.py` has its own client, because it timestamps chunks to the microsecond.
"""

from __future__ import annotations

import base64
import json
import queue
import re
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from augury.config.errors import ConfigError
from augury.tools.shared.causes import reason_of, tls_fault
from augury.tools.shared.safe_text import printable

if TYPE_CHECKING:
    import httpx  # imported on first use, so that help and usage errors stay fast

LARGEST = 16_000_000  # bytes after unpacking; vLLM's metrics are under one million
LAST_PORT = 65_535


class Unreadable(ConfigError):
    """A server that could not be read; `kind` is one word for programs, `code` the HTTP status if one came."""

    def __init__(self, kind: str, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code


class Reply(NamedTuple):
    """A server's response."""

    body: bytes
    kind: str  # its Content-Type, in lower case
    seconds: float


def address_of(url: str) -> tuple[str, str | None]:
    """An address without user and password, safe to print, and the Authorization header they form, or None."""
    whole = url.strip() if "://" in url else f"http://{url.strip()}"
    scheme, _, rest = whole.partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    secret, at, host = place.rpartition("@")
    base = f"{scheme}://{host}{rest[len(place) :]}".rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+([/?#]\S*)?", base):
        shown_url = url if "@" not in url else f"...@{url.rpartition('@')[2]}"
        raise Unreadable("address", f"{shown_url!r} is not an address; write for example http://localhost:8000.")
    port = re.search(r"(?<!\[):([^\]:]*)$", host)
    if not at and "@" in rest and port:
        raise Unreadable("address", "In a user name or password, write / ? # and @ as %2F %3F %23 and %40.")
    if port and not re.fullmatch(r"[0-9]*", port[1]):
        raise Unreadable("address", f"{scheme}://{host[: port.start()]}: what follows the colon is not a port.")
    if port and int(port[1] or 0) > LAST_PORT:
        raise Unreadable("address", f"{base}: there is no port {port[1]}; the last one is {LAST_PORT}.")
    if not at:
        return base, None
    user, _, password = secret.partition(":")
    pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
    return base, f"Basic {base64.b64encode(pair.encode()).decode()}"


class Server:
    """A server, by its own address or that of its metrics; `flag` is the option that messages refer to."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 5.0, flag: str = "") -> None:
        whole, basic = address_of(url)
        whole, _, self._query = whole.partition("?")
        self.base = re.sub(r"(/metrics|(/v1)?/completions|/v1)?/*$", "", whole)
        self.where = f"{flag} {self.base}".strip()
        # A password in the address is for this server; a key from the environment may be for any server.
        self.authorization = basic or (f"Bearer {key}" if key else None)
        if self.authorization and not re.fullmatch(r"[\x20-\x7e]+", self.authorization):
            raise Unreadable("key", "--api-key holds characters that an HTTP header cannot carry.")
        self.timeout = timeout

    def metrics(self) -> Reply:
        """The response of /metrics."""
        return self._ask("/metrics" + (f"?{self._query}" if self._query else ""), None, self.timeout)

    def json(self, path: str, timeout: float = 1.0) -> Any:
        """The JSON at a path; None if there is none."""
        try:
            return self._json(path, None, min(timeout, self.timeout))
        except Unreadable:
            return None

    def models(self, timeout: float = 1.0) -> dict[str, str]:
        """The models under /v1/models, each with its owner."""
        return listed_models(self.json("/v1/models", timeout))

    def post(self, path: str, body: dict[str, Any], timeout: float, headers: Mapping[str, str] | None = None) -> Any:
        """POST a JSON body and return the response's JSON."""
        return self._json(path, body, timeout, headers)

    def events(self, path: str, body: dict[str, Any], within: float | None = None) -> Iterator[bytes]:
        """The lines of a streamed response; the timeout applies to each read, `within` seconds to the whole stream."""
        rest, begun = b"", time.monotonic()
        with self._open(path, body, self.timeout) as reply:
            for piece in reply.iter_bytes():  # not iter_lines, which also splits at U+2028 inside JSON
                if within is not None and time.monotonic() > begun + within:  # a stream may trickle on without end
                    raise Unreadable("timeout", f"{self.where}{path}: the stream did not end within {within:g} s.")
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines

    def _json(
        self, path: str, body: dict[str, Any] | None, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Any:
        raw = self._ask(path, body, timeout, headers).body
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            said = brief(raw.decode("utf-8", "replace"))
            raise Unreadable("json", f"{self.where}{path} does not answer in JSON: {said}") from None

    def _ask(
        self, path: str, body: dict[str, Any] | None, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Fetch in a thread, because neither a DNS lookup nor slowly trickling headers respect a timeout."""
        answers: queue.SimpleQueue[Reply | Unreadable] = queue.SimpleQueue()

        def fetch() -> None:
            try:
                answers.put(self._fetch(path, body, timeout, headers))
            except Unreadable as error:
                answers.put(error)
            except Exception as error:  # any error that an odd response causes in the library becomes one line
                answers.put(self._unreachable(error))

        threading.Thread(target=fetch, daemon=True).start()
        try:
            answer = answers.get(timeout=timeout + 0.5)
        except queue.Empty:
            raise self._late(timeout) from None
        if isinstance(answer, Unreadable):
            raise answer
        return answer

    def _fetch(
        self, path: str, body: dict[str, Any] | None, timeout: float, headers: Mapping[str, str] | None
    ) -> Reply:
        begun, pieces, size = time.monotonic(), [], 0
        with self._open(path, body, timeout, headers) as reply:
            for piece in reply.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST:
                    raise Unreadable("too-large", f"{self.where}: the answer is over {LARGEST // 10**6} MB.")
                if time.monotonic() > begun + timeout:
                    raise self._late(timeout)
            return Reply(b"".join(pieces), reply.headers.get("Content-Type", "").lower(), time.monotonic() - begun)

    @contextmanager
    def _open(
        self, path: str, body: dict[str, Any] | None, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        import httpx

        method = "GET" if body is None else "POST"
        try:
            with self._client.stream(method, self.base + path, json=body, timeout=timeout, headers=headers) as reply:
                if not reply.is_success:
                    raise self._refused(path.partition("?")[0], reply, next(reply.iter_bytes(4000), b""))
                yield reply
        except Unreadable:
            raise
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise self._unreachable(error, timeout) from None

    @cached_property
    def _client(self) -> httpx.Client:
        """The client for all requests, with the system's proxies and certificates."""
        import httpx

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without certificates, which take 70 ms to load
        if self.base.startswith("https:"):
            tls.load_default_certs()

        def redirected(reply: httpx.Response) -> None:
            reply.request.headers.pop("Authorization", None)  # a redirect's target must not see it
            if reply.has_redirect_location:
                tls.load_default_certs()

        host = urllib.parse.urlsplit(self.base).hostname or ""
        proxies = {} if urllib.request.proxy_bypass(host) else urllib.request.getproxies()
        mounts = {
            f"{scheme}://": httpx.HTTPTransport(proxy=url if "://" in url else f"http://{url}", verify=tls)
            for scheme, url in proxies.items()
            if scheme in ("http", "https")
        }
        headers = {"Accept": "application/json, text/plain", "Accept-Encoding": "gzip", "User-Agent": "augury"}
        return httpx.Client(
            headers=headers | ({"Authorization": self.authorization} if self.authorization else {}),
            verify=tls,
            mounts=mounts,
            trust_env=False,
            follow_redirects=True,
            limits=httpx.Limits(max_keepalive_connections=0),  # a kept connection may be closed just as it is reused
            event_hooks={"response": [redirected]},
        )

    def _late(self, timeout: float) -> Unreadable:
        return Unreadable("timeout", f"{self.where} did not answer within {timeout:g} s; raise --timeout?")

    def _cut(self) -> Unreadable:
        return Unreadable("truncated", f"{self.where}: the answer was cut off before its end; try again.")

    def _wants_tls(self) -> Unreadable:
        return Unreadable(
            "tls", f"{self.where}: it seems to speak TLS, not plain HTTP; write https:// instead of http://."
        )

    def _refused(self, path: str, reply: httpx.Response, said: bytes) -> Unreadable:
        """The error for a refused request, from the status and the beginning of the response."""
        code, told = reply.status_code, self.authorization or ""
        if code in (401, 403):
            basic = told.startswith("Basic") or "basic" in reply.headers.get("WWW-Authenticate", "").lower()
            what, fix = ("user and password", "http://USER:PASSWORD@HOST") if basic else ("key", "--api-key")
            given = f"refuses this {what}" if told else f"wants a {what}"
            return Unreadable("forbidden", f"{self.where}{path} {given} (HTTP {code}); give the right one with {fix}.")
        if code == 404 and path == "/metrics":
            why = "does not exist (HTTP 404); is this the API server's port, and are its metrics on?"
            return Unreadable("not-found", f"{self.where}{path} {why}")
        if code == 400 and self.base.startswith("http://") and b"https" in said.lower():
            return self._wants_tls()
        return Unreadable("http", f"{self.where}{path}: HTTP {code}: {error_message(said)}", code)

    def _unreachable(self, error: Exception, timeout: float | None = None) -> Unreadable:
        reason = reason_of(error)
        text = str(reason)
        if isinstance(reason, TimeoutError):
            return self._late(timeout or self.timeout)
        if isinstance(reason, ConnectionRefusedError):
            why = "cannot be reached (connection refused); is the server running?"
            return Unreadable("refused", f"{self.where} {why}")
        if isinstance(reason, socket.gaierror):
            return Unreadable("dns", f"{self.where}: this name is unknown (DNS: {reason.strerror}).")
        if isinstance(reason, ssl.SSLError):
            return Unreadable("tls", f"{self.where}: no TLS connection; {tls_fault(reason)}")
        if "Error -3 while decompressing" in text:
            return Unreadable("malformed", f"{self.where}: the answer claims to be gzip and is not.")
        if "without sending complete message" in text:
            return self._cut()
        if "illegal request line" in text:  # h11's error for a response that begins with a control character
            return self._wants_tls()
        hung_up = isinstance(reason, ConnectionError) or "disconnected without" in text
        hint = "; if it speaks TLS, write https://" if hung_up and self.base.startswith("http://") else ""
        return Unreadable("unreachable", f"{self.where} cannot be read ({brief(text) or type(reason).__name__}){hint}.")


def listed_models(told: Any) -> dict[str, str]:
    """The models in a response of /v1/models, each with its owner."""
    listed = told.get("data") if isinstance(told, dict) else None
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {one["id"]: str(one.get("owned_by", "")) for one in entries if isinstance(one.get("id"), str)}


def error_message(raw: bytes) -> str:
    """The message of a server's error response in any of the usual formats, long enough to include a remedy."""
    text: Any = raw.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        found = found.get("error", found.get("detail", found)) if isinstance(found, dict) else found
        text = found.get("message") or found.get("detail") or found if isinstance(found, dict) else found
    except (ValueError, RecursionError):
        pass
    return brief(text, 600) or "no reason given"


def brief(value: Any, most: int = 200) -> str:
    """A server's text as one short line that is safe for a terminal."""
    text = printable(" ".join(str(value).split()))
    return text if len(text) <= most else f"{text[: most - 3]}..."
