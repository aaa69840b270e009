"""An engine process that loads nothing: it answers every prompt with one token, and misbehaves where a prompt says so.

A prompt of the token 13 gets a message that no server can make sense of, 14 bytes that are no JSON, 15 an end. The
argument `dies_after` ends it after so many seconds. It does not start with the drafter "gone", but takes it in a swap.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from typing import Any

HEADER = struct.Struct("!I")
SENSELESS, GARBAGE, DEATH = 13, 14, 15
GONE = "gone"  # a drafter that was swapped in, and that no new engine finds
FACTS = {
    "max_model_len": 64,
    "vocab_size": 100,
    "device": "cpu",
    "num_spec_tokens": None,
    "method": None,
    "rule": None,
    "lossy": False,
    "speculative_config": None,
    "cache": {"block_size": 16},
}
END = {"reason": "length", "cached": 0, "preemptions": 0, "queued": 0.0, "prefill": 0.0, "decode": 0.0}


def main(end: socket.socket) -> int:
    """Serve until the other end closes."""
    stream = end.makefile("rb")

    def send(message: Any) -> None:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        end.sendall(HEADER.pack(len(body)) + body)

    while head := stream.read(HEADER.size):
        message = json.loads(stream.read(*HEADER.unpack(head)))
        if message["type"] == "start":
            spec = message["arguments"].get("speculative_config")
            if spec and spec["model"] == GONE:
                send({"type": "failed", "message": "no such drafter"})
                return 1
            send({"type": "ready", "facts": {**FACTS, "speculative_config": spec}})
            if seconds := message["arguments"].get("dies_after"):
                threading.Timer(seconds, os._exit, [3]).start()
        elif message["type"] == "swap":
            send({"type": "control", "drafter": message["directory"]})
        elif message["type"] == "add":
            if message["tokens"] == [DEATH]:
                return 3
            if message["tokens"] == [SENSELESS]:
                send({"no": "type"})
            if message["tokens"] == [GARBAGE]:
                send(b"\xff{")
            send({"type": "taken", "id": message["id"]})
            update = {"id": message["id"], "index": 0, "tokens": [1], "text": "!", "cached": 0, "end": END}
            send({"type": "beat", "load": [0, 0, 0.0], "counts": {}, "updates": [update]})
    return 0


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
