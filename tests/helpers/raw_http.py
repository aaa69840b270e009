"""Requests as bytes, for tests of what no client library would send."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from typing import Any

from served import Served


def raw_post(body: dict[str, Any], *lines: str) -> bytes:
    """A request for completions, with more lines in its head."""
    text = json.dumps(body)
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(text)}", "", text]).encode()


def exchange(server: Served, sent: bytes) -> bytes:
    """Send bytes, and read until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as raw:
        raw.sendall(sent)
        return drained(raw)


def drained(raw: socket.socket) -> bytes:
    """What comes until the other side hangs up, gently or not."""
    got = b""
    with suppress(ConnectionError):
        while piece := raw.recv(65536):
            got += piece
    return got


def answered(raw: socket.socket) -> bytes:
    """One whole answer of a known length: its head and its body may come in two pieces."""
    got = b""
    while True:
        got += raw.recv(65536)
        head, end, body = got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if end and length and len(body) >= int(length[1]):
            return got


def code(answer: bytes) -> int:
    """The status of an answer."""
    return int(answer.split(b" ", 2)[1])
