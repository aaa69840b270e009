"""Prometheus in a process of its own, the kit in its configuration, and a stand-in for a vLLM server's /metrics."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from served import free_port

from augury.tools.monitor.kit import files, write
from augury.tools.monitor.settings import KitSettings, settle

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="apt install prometheus")
needs_amtool = pytest.mark.skipif(shutil.which("amtool") is None, reason="apt install prometheus-alertmanager")
EVERY_ALERT = {
    "AuguryAcceptanceLow",
    "AuguryNoDrafts",
    "AuguryDraftsNeverAccepted",
    "AuguryPositionWasteful",
    "AuguryOneApart",
    "AuguryBelowPlain",
    "AuguryPrefixHitsFell",
    "AuguryQueueGrows",
    "AuguryAcceptanceFallsKvClimbs",
    "AuguryTargetDown",
    "AuguryOneWithoutDrafts",
}
KITS: list[dict[str, Any]] = [
    {"baseline_tok_s": 40.0},
    {"kind": "ours", "method": "ngram", "k": 1, "selector": ""},
    {
        "method": "suffix",
        "k": 32,
        "kind": "ours",
        "model_name": "Qwen/.*|meta-llama/Llama-3\\.1-8B",
        "min_position": 0.2,
    },
    {
        "method": "mtp",
        "k": 2,
        "selector": 'zone=~"eu-[0-9]+",job!="x",instance="h:1",engine="0"',
        "min_acceptance": 0.8,
    },
    {"method": "medusa", "k": 4},
    {"method": "draft_model", "k": 5, "kind": "ours"},
]


def made(**options: Any) -> KitSettings:
    defaults: dict[str, Any] = {
        "method": "eagle3",
        "k": 3,
        "selector": 'job="vllm"',
        "model_name": None,
        "datasource": None,
        "kind": "vllm",
        "min_acceptance": None,
        "min_position": None,
        "baseline_tok_s": None,
    }
    return settle(**(defaults | options))


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Its verdict; with more memory between two collections of its garbage it needs a quarter less processor time."""
    return subprocess.run(["promtool", *words], capture_output=True, text=True, env=os.environ | {"GOGC": "400"})


def check(directory: Path) -> None:
    rules = [str(directory / "prometheus" / f"augury-{name}.yml") for name in ("recording", "alerts")]
    told = promtool("check", "rules", *rules)
    assert told.returncode == 0, told.stdout + told.stderr


def unit_tests(directory: Path) -> subprocess.CompletedProcess[str]:
    return promtool("test", "rules", str(directory / "prometheus" / "tests.yml"))


def as_yaml(value: Any) -> str:
    """By libyaml where there is one, which takes a sixth of the time."""
    return yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))


def some_tests(place: Path, tests: dict[str, Any], *names: str) -> subprocess.CompletedProcess[str]:
    """The checks of these alerts, or all; the tests that walk through a day only where nothing else lets one fire."""
    checks = [
        one | {"alert_rule_test": [c for c in one["alert_rule_test"] if not names or c["alertname"] in names]}
        for one in tests["tests"]
    ]
    found = [one for one in checks if one["alert_rule_test"]]
    short = [one for one in found if "prefix_cache" not in str(one["input_series"])]
    fires = any(check["exp_alerts"] for one in short for check in one["alert_rule_test"])
    (place / "some.yml").write_text(as_yaml(tests | {"tests": short if fires else found}))
    return promtool("test", "rules", str(place / "some.yml"))


def kit(directory: Path, **options: Any) -> Path:
    """The files of `augury monitor init` for these options."""
    write(directory, files(made(**options), "augury monitor init"), force=True)
    return directory


class Prometheus:
    """One that scrapes and evaluates every second."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The vector a query gives; nothing while it starts."""
        try:
            got = self.http.get("/api/v1/query", params={"query": query})
        except httpx.TransportError:
            return []
        if got.status_code == 503:
            return []
        assert got.json()["status"] == "success", f"{query}: {got.text}"
        return list(got.json()["data"]["result"])

    def value(self, query: str) -> float:
        """The only figure a query gives."""
        (sample,) = self.ask(query)
        return float(sample["value"][1])

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, with its health and its alerts."""
        return [rule for group in self.http.get("/api/v1/rules").json()["data"]["groups"] for rule in group["rules"]]

    def until(self, holds: Any, seconds: float = 30) -> None:
        """Wait for something."""
        limit = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < limit, "Prometheus has not seen it"
            time.sleep(0.2)


@contextmanager
def prometheus(kit: Path, place: Path, job: str, targets: list[str]) -> Iterator[Prometheus]:
    """A real Prometheus with the kit's example configuration, only quicker, and other targets."""
    config = yaml.safe_load((kit / "prometheus" / "prometheus.example.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(kit / "prometheus" / name) for name in config["rule_files"]]
    config["scrape_configs"] = [{"job_name": job, "static_configs": [{"targets": targets}]}]
    del config["alerting"]
    place.mkdir(parents=True, exist_ok=True)
    (place / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = ["prometheus", f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        running = Prometheus(http)
        try:
            running.until(lambda: len(running.ask("up == 1")) == len(targets))
            yield running
        finally:
            process.terminate()
            process.wait(120)


class StandIn:
    """Counts as a vLLM server would, so many drafts a second with each position accepted at its rate."""

    def __init__(self, model: str, rates: list[float] | None, drafts: float = 100.0) -> None:
        self.model, self.rates, self.drafts = model, rates, drafts
        self.begun = time.monotonic()

    def text(self) -> str:
        """What /metrics says now, in vLLM's words."""
        seconds = time.monotonic() - self.begun
        drafts = int(self.drafts * seconds)
        rates = self.rates or []
        name = self.model.replace("\\", "\\\\").replace('"', '\\"')
        labels = f'engine="0",model_name="{name}"'
        counters: dict[str, float] = {
            "generation_tokens": drafts * (1 + sum(rates)),
            "prompt_tokens": drafts * 10,
            "prefix_cache_queries": drafts * 10,
            "prefix_cache_hits": drafts * 6,
            "num_preemptions": seconds // 2,
        }
        if self.rates is not None:
            counters |= {
                "spec_decode_num_drafts": drafts,
                "spec_decode_num_draft_tokens": drafts * len(rates),
                "spec_decode_num_accepted_tokens": drafts * sum(rates),
            }
        lines = []
        for metric, count in counters.items():
            lines += [f"# HELP vllm:{metric}_total ...", f"# TYPE vllm:{metric}_total counter"]
            lines += [f"vllm:{metric}_total{{{labels}}} {float(count)}", f"vllm:{metric}_created{{{labels}}} 1.7e+09"]
        for position, rate in enumerate(rates):
            metric = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f'{metric}{{{labels},position="{position}"}} {float(drafts * rate)}')
        for metric, figure in {
            "num_requests_running": 4,
            "num_requests_waiting": 1,
            "kv_cache_usage_perc": 0.4,
        }.items():
            lines += [f"# TYPE vllm:{metric} gauge", f"vllm:{metric}{{{labels}}} {float(figure)}"]
        for metric in (
            "time_to_first_token_seconds",
            "request_time_per_output_token_seconds",
            "iteration_tokens_total",
        ):
            lines.append(f"# TYPE vllm:{metric} histogram")
            lines += [
                f'vllm:{metric}_bucket{{{labels},le="{bound}"}} {float(drafts)}' for bound in ("0.1", "1", "+Inf")
            ]
            lines += [
                f"vllm:{metric}_sum{{{labels}}} {drafts * 0.05}",
                f"vllm:{metric}_count{{{labels}}} {float(drafts)}",
            ]
        return "\n".join(lines) + "\n"


@contextmanager
def stand_in(server: StandIn) -> Iterator[str]:
    """Serve it on a free port; gives host:port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = server.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        listening.server_close()
