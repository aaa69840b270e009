"""`augury chat`: pipes, terminals good and dumb, Ctrl-C, commands; our server, a local engine, a stranger."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pexpect
import pytest
from cycling import QUESTION, cycling_model
from served import NGRAM, RUN, Served, served

from augury.tools.run.chat import ChatTally, origin
from augury.tools.shared.terminal import UNSAFE

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cycling_model(tmp_path_factory.mktemp("cycling"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Served]:
    with served(model) as running:
        yield running


def pipe(*words: str, question: str = QUESTION, **extra: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "chat", *words],
        input=question.encode(),
        capture_output=True,
        env={**os.environ, **extra},
        timeout=120,
    )


WIDE = (40, 2000)  # lines and columns: nothing wraps


def talk(*words: str, term: str = "xterm-256color", **extra: str) -> pexpect.spawn:
    env = {**os.environ, "TERM": term, **extra}
    for name in ("NO_COLOR", "COLUMNS"):  # pytest-xdist gives its workers 80 columns
        env.pop(name, None)
    child = pexpect.spawn(
        sys.executable,
        ["-c", RUN, "chat", *words],
        env=env,
        encoding="utf-8",
        timeout=60,
        dimensions=WIDE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite run in the background ignores it
    )
    child.expect("lists the commands")
    child.expect("> ")
    return child


def ask(child: pexpect.spawn, line: str) -> str:
    """Send a line; what is printed before the next prompt, the echo left out."""
    child.sendline(line)
    child.expect_exact(line)
    child.expect("\r\n> |\n> ")
    return str(child.before)


def answer_of(server: Served, messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 60, "temperature": 0, **options}
    return dict(server.http.post("/v1/chat/completions", json=body).raise_for_status().json())


def shown(text: str) -> str:
    """A text as a terminal gets it."""
    return text.translate(UNSAFE).replace("\n", "\r\n")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# --- pipes ---------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_the_answer_and_nothing_else(server: Served) -> None:
    done = pipe(server.url, "--max-tokens", "60")
    expected = answer_of(server, [user(QUESTION)])["choices"][0]["message"]["content"]
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == expected.encode() + b"\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:1"], "is the server running?"),
        (["localhost:8000"], "write the server's address"),
        (["http://127.0.0.1:1", "-sc", "{}"], "a server has its own"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str) -> None:
    done = pipe(*words)
    assert done.returncode == 2 and done.stdout == b""
    assert said in done.stderr.decode() and done.stderr.count(b"\n") == 1


# --- terminals -----------------------------------------------------------------------------------------------------


def test_colours_say_where_tokens_came_from(server: Served) -> None:
    reply = answer_of(server, [user(QUESTION)], speculative={"trace": True})
    tokens = [token for step in reply["augury"]["steps"] for token in step["tokens"]]
    figures = reply["metrics"]["speculative_decoding"]
    assert {origin(token) for token in tokens} == {"plain", "draft", "correction", "bonus"}  # or it would show little
    child = talk(server.url, "--max-tokens", "60")
    said = ask(child, QUESTION)
    child.sendeof()
    child.expect(pexpect.EOF)
    text, _, line = ESCAPES.sub("", said).strip("\r\n").rpartition("\r\n")
    assert text == shown(reply["choices"][0]["message"]["content"]).strip("\r\n")
    for code, name in (("32", "draft"), ("33", "correction"), ("36", "bonus")):
        coloured = "".join(re.findall(rf"\x1b\[{code}m(.*?)\x1b\[0m", said))
        assert coloured == "".join(t["text"] for t in tokens if origin(t) == name).replace("\n", ""), name
    assert f"{len(tokens)} tokens" in line and f"{len(reply['augury']['steps'])} passes" in line
    assert f"of {figures['num_draft_tokens']} drafted tokens accepted" in line
    assert f"mean length {figures['mean_acceptance_length']:.2f}" in line and "tok/s" in line


def test_turns_commands_and_the_way_out(server: Served) -> None:
    child = talk(server.url, "--max-tokens", "60")
    first = ESCAPES.sub("", ask(child, QUESTION))
    answer = answer_of(server, [user(QUESTION)])["choices"][0]["message"]["content"]
    history = [user(QUESTION), {"role": "assistant", "content": answer}, user("xyz")]
    expected = shown(answer_of(server, history)["choices"][0]["message"]["content"])
    assert expected.strip("\r\n") in ESCAPES.sub("", ask(child, "xyz"))  # it was told what had been said
    assert "120 tokens" in ask(child, "/stats")
    assert "off" in ask(child, "/plain")
    assert "forgotten" in ask(child, "/clear")
    again = ESCAPES.sub("", ask(child, QUESTION))
    assert again.rpartition("\r\n")[0] == first.rpartition("\r\n")[0]  # the same text, without drafts
    assert "drafted" in first and "drafted" not in again
    assert "seed 7" in ask(child, "/seed 7")
    assert "whole number" in ask(child, "/seed -1")
    assert "no command /what" in ask(child, "/what")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_dumb_terminal_gets_no_codes(server: Served) -> None:
    child = talk(server.url, "--max-tokens", "60", term="dumb")
    said = ask(child, QUESTION)
    child.sendeof()
    child.expect(pexpect.EOF)
    assert "\x1b" not in said and "60 tokens" in said


def test_a_local_engine_says_what_the_server_says_and_can_be_stopped(server: Served, model: Path) -> None:
    words = ["--model", str(model), "--device", "cpu", "-sc", json.dumps(NGRAM), "--max-tokens", "400"]
    child = talk(*words, "--temperature", "0.8", "--seed", "3", "--system", "be brief")
    messages = [{"role": "system", "content": "be brief"}, user(QUESTION)]
    reply = answer_of(server, messages, temperature=0.8, seed=3, max_tokens=400)
    said = ESCAPES.sub("", ask(child, QUESTION))
    assert said.strip("\r\n").rpartition("\r\n")[0] == shown(reply["choices"][0]["message"]["content"]).strip("\r\n")
    child.sendline("again")
    child.expect_exact("again\r\n")
    child.expect(r"\S")  # the first token
    child.sendintr()
    child.expect("passes")  # the toy is quick: it may have ended by itself
    child.expect("> ")
    assert "tokens" in ask(child, "/stats")  # and the conversation goes on
    child.sendeof()
    child.expect(pexpect.EOF)


# --- a server that is not ours -------------------------------------------------------------------------------------


class Stranger(BaseHTTPRequestHandler):
    """As little of an OpenAI server as there can be: it streams a word every twentieth of a second, for ever."""

    bodies: list[dict[str, Any]] = []  # noqa: RUF012
    left = threading.Event()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        body = json.dumps({"data": [{"id": "other"}]} if known else {"detail": "Not Found"}).encode()
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        asked = self.bodies[-1]["messages"][-1]["content"]
        endless = asked == "endless"
        if asked == "fail":
            self.wfile.write(b'data: {"error": {"message": "out of memory"}}\n\n')
            return
        if asked == "cut":
            self.wfile.write(b'data: {"choices": [{"delta": {"content": "half "}}]}\n\n')
            return
        try:
            for _ in range(10**6 if endless else 3):
                self.wfile.write(b'data: {"choices": [{"delta": {"content": "word "}}]}\n\n')
                self.wfile.flush()
                time.sleep(0.05 if endless else 0)
            self.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\ndata: [DONE]\n\n')
        except OSError:
            self.left.set()


@pytest.fixture
def stranger() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/v1"
        running.shutdown()
        thread.join()


def test_a_stranger_is_asked_only_for_what_it_knows(stranger: str) -> None:
    child = talk(stranger)
    said = ask(child, "hello")
    assert "word word word" in said and "3 tokens" in said and "\x1b[32m" not in said
    assert "speculative" not in Stranger.bodies[-1] and Stranger.bodies[-1]["model"] == "other"
    assert "does not switch speculation" in ask(child, "/plain")
    assert "broke off: out of memory" in ask(child, "fail")  # and the conversation goes on, without that question
    assert "half" in (said := ask(child, "cut")) and "broke off without a reason" in said
    ask(child, "hello")
    told = [message["content"] for message in Stranger.bodies[-1]["messages"]]
    assert told[:3] == ["hello", "word word word ", "cut"]
    child.sendline("endless")
    child.expect("word word")
    child.sendintr()  # the first stops the answer, and the server notices
    child.expect("stopped")
    assert Stranger.left.wait(120)
    child.expect("> ")
    child.sendintr()  # the second leaves
    child.expect(pexpect.EOF)


def test_figures_that_only_the_end_tells() -> None:
    tally = ChatTally(tokens=9)
    tally.told({"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 4})
    assert tally.words() == "9 tokens · 50% of 8 drafted tokens accepted · mean length 3.00"
