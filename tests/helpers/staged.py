"""A stage: an HTTP server that says what a test wants said, for tests of the live commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Send = Callable[[BaseHTTPRequestHandler], None]


def body(raw: bytes | str, kind: str = "text/plain; version=0.0.4", code: int = 200, **headers: str) -> Send:
    """An answer like any other."""
    raw = raw.encode() if isinstance(raw, str) else raw

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(raw)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(raw)

    return send


def drip(seconds: float) -> Send:
    """One byte at a time, for ever."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            handler.wfile.write(b"#")
            handler.wfile.flush()
            time.sleep(0.05)

    return send


def short(raw: bytes, promised: int) -> Send:
    """Fewer bytes than were promised."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(promised))
        handler.end_headers()
        handler.wfile.write(raw)

    return send


def endless(piece: bytes, size: int) -> Send:
    """A great many bytes."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(size // len(piece)):
            handler.wfile.write(piece)

    return send


class Stage:
    """What is said at /metrics, one answer a scrape (the last again and again), and elsewhere."""

    def __init__(self, metrics: Sequence[Send], **others: Any) -> None:
        self.metrics = list(metrics)
        self.others = {f"/{path.replace('__', '/')}": answer for path, answer in others.items()}
        self.seen: list[tuple[str, dict[str, str]]] = []
        stage = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                stage.seen.append((self.path, dict(self.headers)))
                if path == "/metrics" and stage.metrics:
                    answer = stage.metrics[0] if len(stage.metrics) == 1 else stage.metrics.pop(0)
                else:
                    answer = stage.others.get(path, body("not here", code=404))
                with suppress(BrokenPipeError, ConnectionResetError):  # the client had enough
                    answer(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def staged(*metrics: Send | bytes | str, **others: Any) -> Iterator[Stage]:
    """A stage with these answers."""
    stage = Stage([body(one) if isinstance(one, (bytes, str)) else one for one in metrics], **others)
    thread = threading.Thread(target=stage.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stage
    finally:
        stage.server.shutdown()
        stage.server.server_close()
