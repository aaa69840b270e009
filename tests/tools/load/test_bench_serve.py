"""`augury bench serve`: figures that equal what a scripted server did, faults that stop nothing, and our own server."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from benching import STEADY, bench, fake, script_file
from hypothesis import given
from hypothesis import strategies as st
from served import Served, free_port, served
from typer.testing import CliRunner

from augury.cli import app
from augury.tools.load import stream
from augury.tools.load.compare import read_results
from augury.tools.load.load import ArrivalPattern, Stopped, run_round
from augury.tools.load.request import Client, RequestResult
from augury.tools.load.screen import HONEST

RUN = "from augury.cli import main; main()"
# The keys of `vllm bench serve`, as its source has them.
VLLM_KEYS = {
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length",
    "spec_decode_num_drafts",
    "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens",
    "spec_decode_per_position_acceptance_rates",
    *(f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")),
}
DETAILS = {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with fake() as url:
        yield url


def test_bench_still_runs_bare_and_knows_serve() -> None:
    bare = CliRunner().invoke(app, ["bench", "--batch", "x"], prog_name="augury")
    assert bare.exit_code == 2 and "--batch x" in bare.stderr
    shown = CliRunner().invoke(app, ["bench", "--help"], prog_name="augury").stdout
    assert "--peers" in shown and "serve" in shown
    assert "--concurrency" in bench("--help").stdout
    before = CliRunner().invoke(app, ["bench", "--batch", "4", "serve", "http://x"], prog_name="augury")
    assert before.exit_code == 2 and "--batch comes before 'serve'" in before.stderr


def test_a_config_file_may_hold_its_flags(server: str, tmp_path: Path) -> None:
    (tmp_path / "flags.yaml").write_text("concurrency: '2'\nnum-prompts: 3\njson: true\n")
    words = [
        "bench",
        "serve",
        server,
        "--config",
        str(tmp_path / "flags.yaml"),
        "--dataset",
        script_file(tmp_path, {"chunks": 2}),
    ]
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True)
    assert [one["completed"] for one in json.loads(done.stdout)["results"]] == [3], done


def test_needs_no_engine_and_no_matplotlib(server: str, tmp_path: Path) -> None:
    block = "import sys; sys.modules.update({m: None for m in ('torch', 'transformers', 'numba', 'matplotlib')})\n"
    words = [
        "bench",
        "serve",
        server,
        "--dataset",
        script_file(tmp_path, {"chunks": 2}),
        "--concurrency",
        "1",
        "--json",
    ]
    done = subprocess.run([sys.executable, "-c", block + RUN, *words], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["results"], done
    words += ["--plot", str(tmp_path / "p.png")]
    done = subprocess.run([sys.executable, "-c", block + RUN, *words], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'augury[bench]'" in done.stderr and done.stdout == ""


def test_figures_are_what_the_server_did(server: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    done = bench(
        server,
        "--dataset",
        script_file(tmp_path, STEADY),
        "--concurrency",
        "1,4",
        "--num-prompts",
        "8",
        "--save",
        str(saved),
        "--json",
    )
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert [one["max_concurrency"] for one in said["results"]] == [1, 4]
    for one in said["results"]:
        assert one.keys() >= VLLM_KEYS and not one.keys() & DETAILS
        assert (one["completed"], one["failed"], one["num_prompts"]) == (8, 0, 8)
        assert (one["total_input_tokens"], one["total_output_tokens"]) == (8 * 7, 8 * 36)
        # A busy machine is late, never early: sleeping takes at least what was asked.
        whole = 0.15 + 11 * 0.03
        assert 150 <= one["median_ttft_ms"] < 210
        assert 30 <= one["median_itl_ms"] < 40
        assert 1000 * 11 * 0.03 / 35 <= one["median_tpot_ms"] < 1000 * 11 * 0.03 / 35 * 1.35
        assert 1000 * whole <= one["median_e2el_ms"] < 1000 * whole * 1.35
        assert one["output_throughput"] == pytest.approx(8 * 36 / one["duration"])
        assert one["request_throughput"] == pytest.approx(8 / one["duration"])
        assert one["total_token_throughput"] == pytest.approx(8 * 43 / one["duration"])
        assert 36 / whole / 1.35 < one["output_throughput_per_user"] <= 36 / whole
        # a draft of four for each chunk of three tokens: two accepted
        assert one["spec_decode_num_drafts"] == 8 * 12 and one["spec_decode_draft_tokens"] == 8 * 48
        assert one["spec_decode_acceptance_rate"] == pytest.approx(50)
        assert one["spec_decode_acceptance_length"] == pytest.approx(3)
        assert one["spec_decode_per_position_acceptance_rates"] == [1, 1]
        assert (one["backend"], one["model_id"], one["request_rate"]) == ("openai-chat", "fake", "inf")
        assert one["tokens_counted_by"] == "server"
    assert {"model", "dataset", "max_tokens", "temperature", "endpoint"} <= said["conditions"].keys()
    kept = json.loads(saved.read_text())["results"]
    assert kept[0].keys() >= VLLM_KEYS | DETAILS and len(kept[0]["itls"]) == 8 and len(kept[0]["itls"][0]) == 11
    assert read_results(saved).results == kept
    other = dict(said["conditions"], max_tokens=7)
    assert read_results(saved).differences(other) == ["max_tokens 7 now, 128 then"]
    again = bench(
        server,
        "--dataset",
        script_file(tmp_path, STEADY),
        "--concurrency",
        "4",
        "--num-prompts",
        "8",
        "--temperature",
        "1",
        "--compare",
        str(saved),
    )
    assert "not the same in both: temperature 1.0 now, 0.0 then" in again.stdout and "tok/s per user: " in again.stdout


def test_the_screen_says_which_latency_is_honest(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("80", "140"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = bench(
            server, "--dataset", script_file(tmp_path, {"chunks": 3, "each": 2}), "--concurrency", "1,64"
        ).stdout
        assert max(len(line) for line in shown.splitlines()) <= int(columns)
        assert " ".join(HONEST.split()) in " ".join(shown.split())
        assert "…" not in shown and "per user" in shown and "accepted" in shown


def test_chunks_are_counted_where_the_server_does_not_say(server: str, tmp_path: Path) -> None:
    file = script_file(tmp_path, {"chunks": 5, "each": 3, "no_usage": True})
    done = bench(server, "--dataset", file, "--concurrency", "2", "--num-prompts", "4", "--json")
    (one,) = json.loads(done.stdout)["results"]
    assert one["tokens_counted_by"] == "chunks" and one["total_output_tokens"] == 20
    assert "chunks are counted" in " ".join(bench(server, "--dataset", file, "--concurrency", "1").stdout.split())


def test_completions_and_a_rate(server: str, tmp_path: Path) -> None:
    words = ("--dataset", script_file(tmp_path, {"chunks": 2}), "--endpoint", "completions", "--concurrency", "8")
    done = bench(server, *words, "--num-prompts", "12", "--request-rate", "40", "--seed", "3", "--json")
    (one,) = json.loads(done.stdout)["results"]
    assert one["backend"] == "openai" and one["request_rate"] == 40 and one["completed"] == 12
    expected = ArrivalPattern(40.0, 1.0, 3).arrivals(12)[-1]
    assert expected <= one["duration"] < expected + 0.5


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 30.0])
def test_arrivals_have_the_rate_and_the_spread_that_was_asked(burstiness: float) -> None:
    moments = ArrivalPattern(50.0, burstiness, 1).arrivals(20_000)
    gaps = np.diff(moments)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    assert ArrivalPattern().arrivals(3) == [0.0, 0.0, 0.0]


FAULTS = [
    ({"status": 429}, "HTTP 429", "no: 429"),
    ({"status": 500}, "HTTP 500", "no: 500"),
    ({"cut": 2, "chunks": 5}, "stream cut", "midway"),
    ({"garbage": 1, "chunks": 5}, "not JSON", "not JSON"),
    ({"error_at": 1, "chunks": 5}, "error event", "the engine died"),
    ({"whole": True}, "no stream", "came whole"),
    ({"hang": 30}, "timeout", "no end after"),
    ({"reset": True}, "connection lost", "before it answered"),
]


def test_faults_are_counted_by_kind_and_stop_nothing(server: str, tmp_path: Path) -> None:
    file = script_file(tmp_path, *(fault for fault, _, _ in FAULTS), {"chunks": 3, "each": 2})
    words = (server, "--dataset", file, "--concurrency", "3,9", "--num-prompts", "18", "--timeout", "1.5")
    done = bench(*words, "--json")
    assert done.exit_code == 0
    for one in json.loads(done.stdout)["results"]:
        assert one["completed"] == 2 and one["failed"] == 16 and one["total_output_tokens"] == 12
        assert one["errors_by_kind"] == {kind: 2 for _, kind, _ in FAULTS}
        for _, kind, words_of in FAULTS:
            assert words_of in one["first_errors"][kind]


def test_when_nothing_succeeds_the_exit_code_says_so(server: str, tmp_path: Path) -> None:
    done = bench(
        server, "--dataset", script_file(tmp_path, {"status": 503}), "--concurrency", "2", "--num-prompts", "4"
    )
    assert done.exit_code == 1 and "4 of 4 failed, HTTP 503: no: 503" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["http://127.0.0.1:9"], "127.0.0.1:9"),
        (["http://127.0.0.1:99999"], "port"),
        (["ftp://nonsense"], "address"),
        (["URL", "--concurrency", "0"], "--concurrency"),
        (["URL", "--request-rate", "-1"], "--request-rate"),
        (["URL", "--burstiness", "0"], "--burstiness"),
        (["URL", "--extra-body", "[1]"], "--extra-body"),
        (["URL", "--dataset", "nowhere.jsonl"], "--dataset"),
        (["URL", "--compare", "nowhere.json"], "--compare"),
        (["URL", "--save", "/nowhere/at/all.json"], "--save"),
        (["URL", "--baseline-model", "m"], "--baseline-url"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], told: str, server: str) -> None:
    done = bench(*(server if word == "URL" else word for word in words))
    assert done.exit_code == 2 and told in done.stderr and done.stderr.count("\n") == 1 and done.stdout == "", (
        done.output
    )


def test_ctrl_c_keeps_what_was_measured(server: str, tmp_path: Path) -> None:
    file = script_file(tmp_path, {"chunks": 10, "gap": 0.05})
    words = [
        "bench",
        "serve",
        server,
        "--dataset",
        file,
        "--concurrency",
        "1,2",
        "--num-prompts",
        "200",
        "--save",
        str(tmp_path / "kept.json"),
    ]
    before = len(httpx.get(f"{server}/asked").json())
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while len(httpx.get(f"{server}/asked").json()) < before + 6 and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    shown, told = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in shown and "Traceback" not in told, (shown, told)
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["conditions"]["interrupted"] and 0 < kept["results"][0]["completed"] < 200


def test_connections_that_the_server_has_closed_are_not_used_again(server: str) -> None:
    """Servers close idle connections; the next request opens a new one, and nobody waits for the dead."""
    body = json.dumps({"messages": [{"role": "user", "content": '{"chunks": 2}'}]}).encode()

    async def go() -> list[RequestResult]:
        client = Client(server, "/v1/chat/completions", None, 5)
        first = await run_round(client, [(0, body)] * 4, 4, ArrivalPattern(), Stopped(), lambda: None)
        await asyncio.sleep(1.5)
        second = await run_round(client, [(0, body)] * 4, 4, ArrivalPattern(), Stopped(), lambda: None)
        client.close()
        return first.outcomes + second.outcomes

    assert [(one.ok, one.error) for one in asyncio.run(go())] == [(True, "")] * 8


def reference_events(raw: bytes) -> list[bytes]:
    return [line[5:].strip() for line in raw.split(b"\n") if line.startswith(b"data:")]


@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"").strip()), max_size=6),
    st.integers(1, 40),
    st.booleans(),
    st.data(),
)
def test_events_do_not_depend_on_how_bytes_arrive(events: list[bytes], size: int, chunked: bool, data: Any) -> None:
    raw = b"".join(b"data: " + event + b"\n\n" for event in events)
    parts = [raw[i : i + size] for i in range(0, len(raw), size)]
    if chunked:
        coded = b"".join(f"{len(p):X};x=1\r\n".encode() + p + b"\r\n" for p in parts) + b"0\r\nTrailer: 1\r\n\r\n"
        sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded
    else:
        sent = f"HTTP/1.1 200 OK\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]

    request = stream.Address("http://x", None).post("/", b"{}")

    async def go() -> tuple[int, list[bytes]]:
        connection, got = stream.Connection(), list[bytes]()
        connection._transport, connection.open = Silent(), True  # type: ignore[assignment]
        asking = asyncio.create_task(connection.ask(request, lambda now, event: got.append(event)))
        await asyncio.sleep(0)
        for piece in pieces:
            connection.data_received(piece)
        return await asyncio.wait_for(asking, 1), got

    assert asyncio.run(go()) == (200, reference_events(raw))


class Silent:
    """A transport that goes nowhere."""

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_client_is_no_bottleneck_at_64_streams(server: str) -> None:
    """Processor time for each chunk: a core must carry 64 streams at 50 chunks a second with room to spare."""
    asked = {"messages": [{"role": "user", "content": json.dumps({"gap": 0.01, "chunks": 60})}], "stream": True}
    body = json.dumps(asked).encode()

    async def go() -> tuple[float, list[RequestResult]]:
        client = Client(server, "/v1/chat/completions", None, 60)
        await run_round(client, [(0, body)] * 64, 64, ArrivalPattern(), Stopped(), lambda: None)
        before = resource.getrusage(resource.RUSAGE_SELF)
        done = await run_round(client, [(0, body)] * 64, 64, ArrivalPattern(), Stopped(), lambda: None)
        after = resource.getrusage(resource.RUSAGE_SELF)
        client.close()
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.outcomes

    spent, outcomes = asyncio.run(go())
    assert all(one.ok and one.output_tokens == 60 for one in outcomes)
    assert spent / (64 * 60) < 200e-6  # 49 us were measured; 64 streams at 50 chunks a second leave 312


@pytest.fixture(scope="module")
def ours(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--served-model-name", "toy") as running:
        yield running


def test_our_server_under_load(ours: Served, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("abcabcabcabc\nThe cat sat. The cat sat.\nABABAB\n")
    few = json.dumps({"allowed_token_ids": [65, 66, 67]})
    load = ("--dataset", str(tmp_path / "p.txt"), "--concurrency", "1,6", "--num-prompts", "12", "--ignore-eos")
    # Long enough that no busy client finds most answers whole in one read.
    sampling = ("--max-tokens", "240", "--temperature", "0.5", "--seed", "1", "--extra-body", few)
    done = bench(ours.url, *load, *sampling, "--endpoint", "completions", "--json")
    assert done.exit_code == 0, done.output
    for one in json.loads(done.stdout)["results"]:
        assert one["completed"] == 12 and one["total_output_tokens"] == 2880 and one["tokens_counted_by"] == "server"
        assert 0 < one["spec_decode_acceptance_rate"] < 100
        accepted, drafts = one["spec_decode_accepted_tokens"], one["spec_decode_num_drafts"]
        assert one["spec_decode_acceptance_length"] == pytest.approx(1 + accepted / drafts)
        assert sum(one["spec_decode_per_position_acceptance_rates"]) == pytest.approx(accepted / drafts)
        assert one["p99_ttft_ms"] >= one["median_ttft_ms"] > 0 and one["median_tpot_ms"] > 0


def test_speculation_against_none_on_one_server(ours: Served) -> None:
    """Our server switches it by request, so one server can be its own baseline."""
    plain = ("--baseline-url", ours.url, "--baseline-extra-body", '{"speculative": {"enabled": false}}')
    load = ("--concurrency", "2", "--num-prompts", "12", "--max-tokens", "24", "--ignore-eos")
    done = bench(ours.url, *plain, *load, "--json")
    said = json.loads(done.stdout)
    assert said["results"][0]["completed"] == said["baseline_results"][0]["completed"] == 12
    assert "spec_decode_num_drafts" not in said["baseline_results"][0]
    assert said["conditions"]["extra_body"] == {"baseline": {"speculative": {"enabled": False}}}


def test_a_server_that_is_not_there() -> None:
    done = bench(f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 2 and done.stderr.startswith("error: URL http://127.0.0.1")
