"""Traces: an answer's span and its stages at a collector, with what was drafted; nothing of it costs an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served import free_port, served

from augury.config.errors import ConfigError
from augury.serve.origin import note_origin, origin
from augury.serve.telemetry import addresses

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPEC = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


class Collector(ThreadingHTTPServer):
    """Keeps what it is sent, by path."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: dict[str, list[tuple[dict[str, str], Any]]] = {}
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.setdefault(self.path, []).append((dict(self.headers), body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        yield collector
        collector.shutdown()


def flat(told: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in told}


def test_an_answer_and_its_stages(toy_model: Path) -> None:
    body = {"model": "toy", "prompt": "abcabc", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    with collecting() as collector:
        url = f"http://127.0.0.1:{collector.server_port}"
        more = {"OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}
        flags = ("--served-model-name", "toy", "--otlp-traces-endpoint", url)
        with served(toy_model, *flags, spec=SPEC, **more) as server:
            answer = server.http.post("/v1/completions", json=body, headers={"traceparent": PARENT}).json()
            unsampled = PARENT[:-2] + "00"
            assert server.http.post("/v1/completions", json=body, headers={"traceparent": unsampled}).status_code == 200
            chat = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            assert server.http.post("/v1/chat/completions", json=chat).status_code == 200
        # The server sends the last ones before it ends.
        sent = [one for _, one in collector.got["/v1/traces"]]
        headers, figures = collector.got["/v1/metrics"][-1]
    resources = [resource for one in sent for resource in one["resourceSpans"]]
    assert flat(resources[0]["resource"]["attributes"])["service.name"] == "mine" and headers["x-key"] == "a b"
    spans = [span for resource in resources for span in resource["scopeSpans"][0]["spans"]]
    roots = [span for span in spans if span["kind"] == 2]
    assert [root["name"] for root in roots] == ["text_completion toy", "chat toy"]
    [first, second] = roots
    assert first["traceId"] == PARENT[3:35] and first["parentSpanId"] == PARENT[36:52]
    assert second["traceId"] != first["traceId"] and "parentSpanId" not in second
    told, drafted = flat(first["attributes"]), answer["metrics"]["speculative_decoding"]
    assert told["gen_ai.usage.output_tokens"] == "40" and told["gen_ai.usage.input_tokens"] == "6"
    assert told["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "length"}]}
    assert told["augury.speculative.method"] == "ngram"
    assert told["augury.speculative.num_accepted_tokens"] == str(drafted["num_accepted_draft_tokens"])
    stages = {span["name"]: span for span in spans if span.get("parentSpanId") == first["spanId"]}
    assert stages.keys() == {"queue", "prefill", "decode"}
    times = [int(stages[name]["startTimeUnixNano"]) for name in ("queue", "prefill", "decode")]
    assert int(first["startTimeUnixNano"]) <= times[0] <= times[1] <= times[2] <= int(first["endTimeUnixNano"])
    named = {one["name"]: one for one in figures["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
    assert named.keys() >= {"gen_ai.server.request.duration", "gen_ai.client.token.usage"}
    counts = [int(point["count"]) for point in named["gen_ai.server.request.duration"]["histogram"]["dataPoints"]]
    assert sum(counts) == 3, "figures are of all answers, sampled or not"


def test_a_collector_that_is_gone_costs_no_answer(toy_model: Path) -> None:
    flags = ("--served-model-name", "toy", "--otlp-traces-endpoint", f"http://127.0.0.1:{free_port()}")
    with served(toy_model, *flags, spec=None) as server:
        body = {"model": "toy", "prompt": "abc", "max_tokens": 4}
        assert server.http.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("http://c:4318", ("http://c:4318/v1/traces", "http://c:4318/v1/metrics")),
        ("https://c/v1/traces", ("https://c/v1/traces", "https://c/v1/metrics")),
        ("http://c/mine", ("http://c/mine", None)),
    ],
)
def test_addresses(given: str, found: tuple[str, str | None]) -> None:
    assert addresses(given) == found


def test_other_addresses_and_headers() -> None:
    for wrong in ("grpc://c:4317", "c:4317", "http://"):
        with pytest.raises(ConfigError, match="OTLP goes over HTTP"):
            addresses(wrong)
    for wrong in ("", "00-" + "0" * 32 + "-b7ad6b7169203331-01", PARENT.upper(), "01" + PARENT[2:], PARENT + "x"):
        note_origin("/v1/responses", "toy", wrong)
        made = origin.get()
        assert made is not None and made.parent == "" and made.sampled and made.operation == "chat"
    origin.set(None)
