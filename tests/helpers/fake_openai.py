"""A server that speaks OpenAI's API and does what its prompts tell it to, in a process of its own.

A prompt is JSON: {"ttft": seconds, "gap": seconds, "chunks": n, "each": tokens in a chunk} and, to misbehave, one of
"status", "cut", "garbage", "error_at" (a chunk), "no_usage", "whole", "hang", "reset".
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

COUNTED = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
POSITIONS: dict[int, int] = {}
KEPT = 0.7  # seconds that a connection may be idle
WANTED = sys.argv[2] if len(sys.argv) > 2 else ""  # the Authorization header that everything needs
ASKED: list[dict[str, Any]] = []  # every request, for GET /asked
SLOWER = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0


def metrics() -> bytes:
    lines = [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {count}' for name, count in COUNTED.items()]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{engine="0",position="{position}"}} {count}' for position, count in POSITIONS.items()]
    return ("\n".join([*lines, 'vllm:num_requests_running{engine="0"} 0']) + "\n").encode()


def count(each: int) -> None:
    COUNTED["drafts"] += 1
    COUNTED["draft_tokens"] += 4
    COUNTED["accepted_tokens"] += each - 1
    for position in range(each - 1):
        POSITIONS[position] = POSITIONS.get(position, 0) + 1


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await asyncio.wait_for(reader.readline(), KEPT):
            method, path, _ = line.decode().split(" ")
            length, given = 0, ""
            while (header := await reader.readline()).strip():
                name, _, value = header.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
                given = value.strip() if name.lower() == "authorization" else given
            body = await reader.readexactly(length)
            if WANTED and given != WANTED:
                plain(writer, 401, b'{"error": {"message": "who are you?"}}')
            elif not await answer(method, path, body, writer):
                return
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        pass
    finally:
        writer.close()


def plain(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json") -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def answer(method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
    if method == "GET":
        if path == "/metrics":
            plain(writer, 200, metrics(), "text/plain")
        elif path == "/asked":
            plain(writer, 200, json.dumps(ASKED).encode())
        else:
            plain(writer, 200, json.dumps({"data": [{"id": "fake"}]}).encode())
        return True
    asked = json.loads(body)
    ASKED.append(asked)
    text = asked["messages"][-1]["content"] if "messages" in asked else asked["prompt"]
    script = json.loads(text[text.index("{") :]) if "{" in text else {"chunks": 1}
    return await play(script, asked, writer)


async def play(script: dict[str, Any], asked: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
    if "status" in script:
        plain(writer, script["status"], json.dumps({"error": {"message": f"no: {script['status']}"}}).encode())
        return True
    if script.get("reset"):
        writer.transport.abort()
        return False
    if script.get("whole"):
        plain(writer, 200, b'{"choices": [{"message": {"content": "all"}}]}')
        return True
    await asyncio.sleep(script.get("ttft", 0.0) * SLOWER + script.get("hang", 0.0))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunks, each = script.get("chunks", 1), script.get("each", 1)

    def send(data: bytes) -> None:
        event = b"data: " + data + b"\n\n"
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")

    chat = "messages" in asked
    for number in range(chunks):
        if number:
            await asyncio.sleep(script.get("gap", 0.0) * SLOWER)
        if script.get("cut") == number:
            writer.close()
            return False
        if script.get("garbage") == number:
            send(b'{"choices": [')
        if script.get("error_at") == number:
            send(b'{"error": {"message": "the engine died"}}')
        last = "stop" if number == chunks - 1 else None
        choice = {"delta": {"content": "x"}} if chat else {"text": "x"}
        send(json.dumps({"choices": [{"index": 0, **choice, "finish_reason": last}]}).encode())
        count(each)
    if not script.get("no_usage"):
        usage = {"prompt_tokens": 7, "completion_tokens": chunks * each}
        send(json.dumps({"choices": [], "usage": usage}).encode())
    send(b"[DONE]")
    writer.write(b"0\r\n\r\n")
    return True


async def main() -> None:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
