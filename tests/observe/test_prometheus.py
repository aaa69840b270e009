"""A real Prometheus scrapes a running server, and the queries of a vLLM dashboard give what the engine counted."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, free_port, served

NEEDED = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(NEEDED), reason=f"{' and '.join(NEEDED)} not installed: apt install prometheus")

ACCEPTANCE_RATE = (
    "rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_draft_tokens_total[5m])"
)
MEAN_LENGTH = "1 + (rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_drafts_total[5m]))"
# As the recipe has it, the position on the left finds no partner on the right; `ignoring` says that it needs none.
PER_POSITION_AS_WRITTEN = (
    "rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[5m]) / rate(vllm:spec_decode_num_drafts_total[5m])"
)
PER_POSITION = PER_POSITION_AS_WRITTEN.replace(" / ", " / ignoring(position) group_left ")


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--served-model-name", "toy") as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Prometheus, once it has scraped the server; what is counted later counts from nought."""
    place, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = place / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: augury, static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]}}]\n"
    )
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
    try:
        until(lambda: [sample["value"][1] for sample in ask(client, 'up{job="augury"}')] == ["1"])
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(120)


def until(holds: Any, seconds: float = 15) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, "Prometheus has not seen it"
        time.sleep(0.1)


def ask(client: httpx.Client, query: str) -> list[dict[str, Any]]:
    """The vector a query gives; none while Prometheus starts."""
    try:
        got = client.get("/api/v1/query", params={"query": query})
    except httpx.TransportError:
        return []
    if got.status_code == 503:
        return []
    assert got.json()["status"] == "success", got.text
    return list(got.json()["data"]["result"])


def value(client: httpx.Client, query: str) -> float:
    (sample,) = ask(client, query)
    assert sample["metric"]["model_name"] == "toy" and sample["metric"]["engine"] == "0"
    return float(sample["value"][1])


def test_the_queries_give_what_the_engine_counted(server: Served, prometheus: httpx.Client) -> None:
    few = {"ignore_eos": True, "allowed_token_ids": [65, 66, 67], "temperature": 0.5, "seed": 1}
    prompts = ["abcabc", "ABAB", "The cat sat. The cat"]
    got = server.http.post("/v1/completions", json={"prompt": prompts, "max_tokens": 150, **few}).json()
    server.until_idle()
    counted = server.metrics()
    drafts, drafted, accepted = (
        counted[f"vllm:spec_decode_{name}_total"] for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    )
    assert len(got["choices"]) == 3 and 0 < accepted < drafted
    until(lambda: value(prometheus, "vllm:spec_decode_num_draft_tokens_total") == drafted)
    until(lambda: ask(prometheus, ACCEPTANCE_RATE))
    # The counters were nought at the first scrape, so Prometheus stretches all rates alike and the ratios are exact.
    assert value(prometheus, ACCEPTANCE_RATE) == pytest.approx(accepted / drafted, rel=1e-9)
    assert value(prometheus, MEAN_LENGTH) == pytest.approx(1 + accepted / drafts, rel=1e-9)
    assert ask(prometheus, PER_POSITION_AS_WRITTEN) == []
    shares = {sample["metric"]["position"]: float(sample["value"][1]) for sample in ask(prometheus, PER_POSITION)}
    position = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{"position": "%s"}'
    assert shares == {p: pytest.approx(counted[position % p] / drafts, rel=1e-9) for p in "0123"}
    assert sum(shares.values()) == pytest.approx(value(prometheus, MEAN_LENGTH) - 1)
    speed = "histogram_quantile(0.5, rate(vllm:time_to_first_token_seconds_bucket[5m]))"
    assert 0 < value(prometheus, speed) < 60


def test_promtool_finds_nothing_but_what_vllm_chose(server: Served) -> None:
    """It reads everything, and complains of vLLM's colons and of one histogram's name; of no sentence, unit or type."""
    text = server.http.get("/metrics").text
    told = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert told.returncode in (0, 3) and "error" not in told.stderr, told  # 1 would say that it cannot read them
    complaints = [line for line in told.stderr.splitlines() if not line.endswith("should not contain ':'")]
    assert complaints == ['vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix']
