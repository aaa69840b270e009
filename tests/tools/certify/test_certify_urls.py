"""`augury certify` of two servers: honest ones pass, dishonest ones are caught, bad ones are named."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from certifying import augury, check_page
from hypothesis import settings

from augury.tools.certify.report import ComparisonReport
from augury.tools.certify.urls import UrlPlan, certify_urls
from augury.tools.shared.endpoint import Endpoint
from augury.tools.shared.http import Unreadable

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=80)


@cache
def toy_law(prompt: str, before: str) -> dict[str, float]:
    rng = random.Random(f"{prompt}|{before}")
    masses = [math.exp(2 * rng.gauss(0, 1)) for _ in Server.TOKENS]
    return {token: mass / sum(masses) for token, mass in zip(Server.TOKENS, masses, strict=True)}


class Server:
    """Enough of /v1/completions: a law over a few tokens that depends on the prompt and on the token before."""

    TOKENS = (" a", " b", " c", " d", " e", " f", " <g>", "\n")

    def __init__(self) -> None:
        self.bias = 0.0  # how much of the law's mass moves to the first token, from the second token of an answer on
        self.nudge = 0.0  # what is added to the second-best log-probability
        self.salt = 0
        self.key: str | None = None
        self.offers_logprobs = True
        self.drafts: int | None = 0
        self.asked: list[dict[str, Any]] = []
        self.delay = 0.0
        self.raw: bytes | None = None

    def law(self, prompt: str, before: str, depth: int) -> dict[str, float]:
        law = dict(toy_law(prompt, before))
        if self.nudge:
            best, second, *_ = sorted(law, key=lambda token: -law[token])
            law[second] = law[best] * math.exp(self.nudge)
        if self.bias and depth:
            law = {token: mass * (1 - self.bias) for token, mass in law.items()}
            law[self.TOKENS[0]] += self.bias
        return law

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.drafts = None if self.drafts is None else self.drafts + 1
        rng = random.Random(f"{self.salt}|{body['seed']}|{body['prompt']}|{body['temperature']}")
        tokens: list[str] = []
        laws = []
        for depth in range(body["max_tokens"]):
            law = self.law(body["prompt"], tokens[-1] if tokens else "", depth)
            laws.append(law)
            if body["temperature"] == 0:
                tokens.append(max(law, key=lambda token: law[token]))
            else:
                tokens += rng.choices(list(law), list(law.values()))
        told = {
            "tokens": tokens,
            "token_logprobs": [math.log(law[token]) for law, token in zip(laws, tokens, strict=True)],
            "top_logprobs": [
                {t: math.log(m) for t, m in sorted(law.items(), key=lambda i: -i[1])[: body.get("logprobs", 0)]}
                for law in laws
            ],
        }
        offered = told if self.offers_logprobs and "logprobs" in body else None
        return {"choices": [{"text": "".join(tokens), "finish_reason": "length", "logprobs": offered}]}


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # head and body in one packet: the second would wait for an acknowledgement of the first

        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, code: int, value: Any) -> None:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.answer(200, {"data": [{"id": "toy"}]})
            elif self.path == "/metrics" and server.drafts is not None:
                line = f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="toy"}} {float(server.drafts)}'
                self.answer(200, f"# HELP x y\n{line}\n".encode())
            else:
                self.answer(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            if server.delay:
                threading.Event().wait(server.delay)
            if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
                self.answer(401, {"error": {"message": "Unauthorized"}})
            elif body["model"] != "toy":
                self.answer(404, {"error": {"message": "The model does not exist."}})
            elif server.raw is not None:
                self.answer(200, server.raw)
            elif not body["prompt"]:
                self.answer(400, {"error": {"message": "the prompt is\nempty"}})
            else:
                self.answer(200, server.complete(body))

    return Handler


@contextmanager
def serving(server: Server) -> Iterator[str]:
    inner = ThreadingHTTPServer(("127.0.0.1", 0), handler(server), bind_and_activate=False)
    inner.request_queue_size = 64  # more than are ever in flight
    inner.server_bind()
    inner.server_activate()
    thread = threading.Thread(target=inner.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{inner.server_port}"
    finally:
        inner.shutdown()
        inner.server_close()
        thread.join()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, str, Server, str]]:
    """One that speculates and a baseline, both honest until told otherwise."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fast, plain = Server(), Server()
    with serving(fast) as url, serving(plain) as baseline:
        yield fast, url, plain, baseline


def certified(servers: tuple[Server, str, Server, str], **amounts: Any) -> ComparisonReport:
    _, url, _, baseline = servers
    plan = UrlPlan(["one", "two", "three"], **{"max_tokens": 8, "samples": 400, **amounts})
    return certify_urls(Endpoint("--url", url), Endpoint("--baseline-url", baseline + "/v1/"), plan)


@pytest.mark.parametrize("turn", range(3))
def test_an_honest_server_passes(servers: Any, turn: int) -> None:
    # Both sides draw anew: one unlucky baseline (of a hundred there is one) would speak in all turns.
    servers[0].salt, servers[2].salt = 2 * turn + 1, 2 * turn + 2
    report = certified(servers, samples=250)
    assert report.exit_code == 0 and report.drafted
    assert report.equalities[0].equal == report.equalities[0].answers == 3
    assert report.law and {place.depth for place in report.law.places} >= {0, 1}


def test_a_biased_server_is_caught(servers: Any) -> None:
    honest = certified(servers)
    assert honest.exit_code == 0 and honest.law
    # What the honest run says it would have found, at the best place behind a first token: so much is put there.
    servers[0].bias = min(honest.law.finds(place.fit) for place in honest.law.places if place.depth)
    assert servers[0].bias < 0.35
    servers[0].nudge = 0.0
    report = certified(servers, temperatures=[1.0])
    assert report.exit_code == 1 and report.law and not report.law.holds
    guilty = [p for p, value in zip(report.law.places, report.law.adjusted, strict=False) if value < report.law.alpha]
    assert all(place.depth > 0 for place in guilty)  # before the first draft nothing was moved


def test_near_ties_between_servers(servers: Any) -> None:
    servers[0].nudge, servers[2].nudge = 0.05, -0.05
    greedy = certified(servers, temperatures=[0.0]).equalities[0]
    assert greedy.equal == 0 and greedy.holds
    found = greedy.differences[0]
    assert found.position == 0 and found.gap == pytest.approx(0.05) and found.apart == pytest.approx(0.1)
    servers[0].nudge = 1.0
    assert certified(servers, temperatures=[0.0]).exit_code == 1
    servers[0].nudge, servers[0].offers_logprobs = 0.05, False
    unknown = certified(servers, temperatures=[0.0])
    assert unknown.exit_code == 1  # without log-probabilities a difference stays unexplained
    assert unknown.equalities[0].differences[0].apart is None


def test_same_seeds(servers: Any) -> None:
    same = certified(servers, same_seed=True, samples=1, temperatures=[0.0, 1.0])
    assert [(e.answers, e.equal) for e in same.equalities] == [(3, 3), (6, 6)]
    servers[0].salt = 1
    other = certified(servers, same_seed=True, samples=1, temperatures=[0.0, 1.0])
    assert other.exit_code == 1 and other.equalities[0].equal == 3 and other.equalities[1].equal < 6


def test_samples_of_the_two_servers_share_no_seed(servers: Any) -> None:
    certified(servers, samples=20)
    seeds = [{body["seed"] for body in server.asked if body["temperature"] > 0} for server in (servers[0], servers[2])]
    assert len(seeds[0]) == len(seeds[1]) == 40 and not seeds[0] & seeds[1]


def test_a_server_that_drafts_nothing_certifies_nothing(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "drafts", lambda self: 7.0)
    assert certified(servers, temperatures=[0.0]).exit_code == 2
    monkeypatch.setattr(Endpoint, "drafts", lambda self: None)
    silent = certified(servers, temperatures=[0.0])
    assert silent.exit_code == 0 and any("metrics" in note for note in silent.notes)


def test_servers_without_logprobs_are_compared_by_their_text(servers: Any) -> None:
    servers[0].offers_logprobs = servers[2].offers_logprobs = False
    report = certified(servers, samples=150, max_tokens=2)
    assert report.exit_code == 0 and report.law and {place.depth for place in report.law.places} == {0}
    servers[0].bias = 0.6
    assert certified(servers, samples=150, max_tokens=2).exit_code == 1


def test_servers_on_the_command_line(servers: Any, tmp_path: Path) -> None:
    _, url, _, baseline = servers
    page = tmp_path / "page.html"
    words = ["--url", url, "--baseline-url", baseline, "--samples", "120", "--max-tokens", "8"]
    result = augury(*words, "--json", "--html", str(page))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["conditions"]["model"] == "toy" and record["distribution"]["places"]
    check_page(page, "observed share", url)
    assert "&lt;g&gt;" in page.read_text()  # a model's text is no markup
    shown = augury(*words, "--temperature", "1")
    assert shown.exit_code == 0 and "HOLDS" in shown.stdout and "Power" in shown.stdout


def refused(result: Any, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr, result.stderr


def test_errors_of_servers_are_one_line(servers: Any) -> None:
    fast, url, _, baseline = servers
    both = ["--url", url, "--baseline-url", baseline, "--samples", "1", "--max-tokens", "4"]
    with serving(Server()) as gone:
        pass
    refused(augury("--url", gone, "--baseline-url", baseline), "--url", "cannot be reached", "running?")
    refused(augury(*both, "--model", "gpt"), "'gpt'", "offers toy", "--model")
    refused(augury("--url", "localhost:1", "--baseline-url", baseline), "http://")
    refused(augury("--url", "file:///etc", "--baseline-url", baseline), "http://")
    fast.key = "secret"
    refused(augury(*both), "wants a key", "401", "--api-key")
    bad = augury(*both, "--api-key", "wrong-key")
    refused(bad, "refuses this key")
    assert "wrong-key" not in bad.stderr
    good = augury(*both, "--api-key", "secret", "--temperature", "0", "--json")
    assert good.exit_code == 0 and "secret" not in good.output
    fast.key, fast.delay = None, 0.5
    refused(augury(*both, "--timeout", "0.05"), "did not answer within 0.05 s", "--timeout")
    fast.delay, fast.raw = 0.0, b"<html>"
    refused(augury(*both), "does not answer in JSON", "<html>")
    fast.raw = b'{"choices": []}'
    refused(augury(*both), "not a completion")


def test_a_servers_reason_is_passed_on(servers: Any) -> None:
    with pytest.raises(Unreadable, match="HTTP 400: the prompt is empty"):
        Endpoint("--url", servers[1]).complete("", max_tokens=1, temperature=0.0, seed=0)


def test_errors_of_use_are_one_line(servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUGURY_SPECULATIVE_CONFIG", raising=False)
    _, url, _, baseline = servers
    refused(augury(), "--exact", "-sc", "--baseline-url")
    refused(augury("--exact", "--url", url), "one of the three")
    refused(augury("--url", url), "--baseline-url is missing")
    refused(augury("--baseline-url", url), "--url is missing")
    refused(augury("--exact", "--html", str(tmp_path / "no" / "x.html")), "no directory")
    refused(augury("-sc", '{"method": "ngram", "num_speculative_tokens": -1}'), "num_speculative_tokens")
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    refused(augury("--url", url, "--baseline-url", baseline, "--prompts", str(talk)), '"prompt"')


def test_servers_are_compared_without_torch(servers: Any) -> None:
    _, url, _, baseline = servers
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr));"
        "from augury.cli import main; main()"
    )
    words = ["certify", "--url", url, "--baseline-url", baseline, "--samples", "120", "--max-tokens", "2", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "False", done
