"""Reading a live server: every way it can fail is told apart in one sentence, and no bytes lead to a traceback."""

from __future__ import annotations

import gzip
import socket
import ssl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import free_port
from staged import body, drip, endless, short, staged
from vllm_text import SCENES, Engine, Moment, made, recorded, started, text

from augury.tools.live.reading import readings
from augury.tools.live.scrape import Scrape, parse, scrape
from augury.tools.shared.http import Reply, Server, Unreadable

HEALTHY = made("healthy-eagle3")[0]
NODE = "# TYPE go_goroutines gauge\ngo_goroutines 8\n# TYPE node_load1 gauge\nnode_load1 0.4\n"
SGLANG = '# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length{model_name="m"} 2.1\n'
LLAMA = "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 12\n"
TGI = "# TYPE tgi_request_count counter\ntgi_request_count 3\n"
V0 = '# TYPE vllm:spec_decode_efficiency gauge\nvllm:spec_decode_efficiency{model_name="m"} 0.8\n'


def why(*metrics: Any, timeout: float = 2.0, key: str | None = None) -> tuple[str, str]:
    """The kind and the sentence of a failure."""
    with staged(*metrics) as stage:
        return refusal(stage.url, timeout, key)


def refusal(url: str, timeout: float = 2.0, key: str | None = None) -> tuple[str, str]:
    with pytest.raises(Unreadable) as raised:
        scrape(Server(url, key, timeout))
    said = str(raised.value)
    assert "\n" not in said and said.isprintable()
    return raised.value.kind, said


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (body("<!doctype html><html></html>", "text/html"), "html", "web page"),
        (body('{"status": "ok"}', "application/json"), "json", "JSON"),
        (body("[1, 2]"), "json", "JSON"),
        (body(b""), "empty", "empty"),
        (body(b"\x00\x01\x02" * 100), "malformed", "binary"),
        (body(bytes(range(128, 256)) * 4), "malformed", "binary"),
        (body(HEALTHY[: len(HEALTHY) // 2] + "vllm:spec_decode_num_dra"), "truncated", "cut off in line"),
        (body(HEALTHY.replace("} 40000.0", "} forty", 1)), "malformed", "line "),
        (body("x" * 50_000 + " 1\n"), "malformed", "line 1"),
        (body(NODE), "other", "a node exporter"),
        (body(SGLANG), "other", "SGLang"),
        (body(LLAMA), "other", "llama.cpp"),
        (body(TGI), "other", "Text Generation Inference"),
        (body("# TYPE something gauge\nsomething 1\n"), "other", "something else (for example something)"),
        (body(V0), "first-engine", "V0"),
        (body("no", code=404), "not-found", "404"),
        (body("no", code=401), "forbidden", "wants a key"),
        (body("no", code=503), "http", "503"),
        (short(HEALTHY.encode()[:500], 5000), "truncated", "cut off"),
        (body(gzip.compress(HEALTHY.encode())[:-40], Content_Encoding="gzip"), "truncated", "cut off"),
        (body(b"plainly not", Content_Encoding="gzip"), "malformed", "gzip"),
        (body(gzip.compress(b"#" * 40_000_000), Content_Encoding="gzip"), "too-large", "MB"),
    ],
)
def test_what_came_instead_is_named(answer: Any, kind: str, says: str) -> None:
    found, said = why(answer)
    assert found == kind and says in said


def test_a_server_of_models_without_metrics_is_told_from_anything_else() -> None:
    models = body('{"data": [{"id": "m", "owned_by": "sglang"}, 3, {"id": 4}]}', "application/json")
    with staged(v1__models=models) as stage:
        kind, said = refusal(stage.url)
    assert kind == "no-metrics" and "serves m (owned by sglang)" in said


def test_the_line_that_is_wrong_is_counted() -> None:
    lines = HEALTHY.split("\n")
    lines[6] = "vllm:kv_cache_usage_perc{engine= 3"
    assert "line 7" in why("\n".join(lines))[1]


def test_a_wrong_key_is_told_from_a_missing_one() -> None:
    assert "refuses this key" in why(body("no", code=403), key="secret")[1]


def test_nobody_there() -> None:
    kind, said = refusal(f"127.0.0.1:{free_port()}")
    assert kind == "refused" and "is the server running?" in said


def test_a_name_that_is_not_known() -> None:
    assert refusal("http://no-such-host.invalid:8000")[0] in ("dns", "timeout")


def test_https_where_there_is_http() -> None:
    with staged(HEALTHY) as stage:
        kind, said = refusal(stage.url.replace("http", "https"))
    assert kind == "tls" and "http://" in said


def test_a_server_that_says_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        kind, said = refusal(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
    assert kind == "timeout" and "0.3 s" in said


@pytest.mark.parametrize("answer", [drip(3.0)])
def test_a_drip_is_cut_short(answer: Any) -> None:
    assert why(answer, timeout=0.4)[0] == "timeout"


def test_a_hundred_megabytes_are_not_read() -> None:
    kind, _ = why(endless(b"vllm:x 1\n" * 10_000, 100_000_000), timeout=20)
    assert kind == "too-large"


@pytest.mark.parametrize("address", ["ftp://x", "http://", "", "http:// x", "://"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Unreadable, match="not an address"):
        Server(address)


@pytest.mark.parametrize("ending", ["", "/", "/metrics", "/metrics/", "/v1", "/metrics?name=x"])
def test_addresses_may_be_written_in_many_ways(ending: str) -> None:
    with staged(HEALTHY) as stage:
        found = scrape(Server(stage.url.removeprefix("http://") + ending))
        assert stage.seen[0][0] == ("/metrics?name=x" if "?" in ending else "/metrics")
    assert found.engine == "vLLM" and "vllm:spec_decode_num_drafts_total" in found.samples


def test_gzip_is_unpacked_and_a_key_is_sent() -> None:
    with staged(body(gzip.compress(HEALTHY.encode()), Content_Encoding="gzip")) as stage:
        assert readings(scrape(Server(stage.url, "secret")))
        assert stage.seen[0][1]["Authorization"] == "Bearer secret"


def test_a_key_does_not_follow_to_another_host() -> None:
    with staged(HEALTHY) as other, staged(body("", code=302, Location=f"{other.url}/metrics")) as first:
        scrape(Server(first.url, "secret"))
        assert "Authorization" in first.seen[0][1] and "Authorization" not in other.seen[0][1]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400) | st.text(max_size=300).map(lambda t: (t + "\n").encode("utf-8", "replace")))
def test_any_bytes_are_read_or_refused_in_one_sentence(raw: bytes) -> None:
    _either(raw)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(HEALTHY)), st.binary(max_size=8), st.integers(0, 60))
def test_damaged_metrics_are_read_or_refused_in_one_sentence(at: int, put: bytes, cut: int) -> None:
    whole = HEALTHY.encode()
    _either(whole[:at] + put + whole[at + cut :])


def _either(raw: bytes) -> None:
    try:
        samples, names = parse(Reply(raw, "", 0.0), "http://x")
    except Unreadable as error:
        assert str(error).isprintable()
    else:
        for reading in readings(Scrape(0.0, 0.0, samples, frozenset(names))).values():
            assert all(value >= 0 for value in reading.counters.values())


# --- readings --------------------------------------------------------------------------------------------------------


def read(moment: Moment) -> Any:
    samples, names = parse(Reply(text(moment).encode(), "", 0.0), "http://x")
    return readings(Scrape(1.0, 0.0, samples, frozenset(names)))


@pytest.mark.parametrize("total", [True, False])
@pytest.mark.parametrize("created", [True, False])
def test_counters_are_found_with_and_without_total(total: bool, created: bool) -> None:
    (reading,) = read(Moment([started((0.9, 0.5))], total, created)).values()
    assert reading.counters["drafts"] == 40_000 and reading.counters["accepted"] == 56_000
    assert reading.accepted_at == (36_000, 20_000) and reading.speculates
    assert reading.counters["generation_tokens"] == 96_000 and reading.gauges["kv_usage"] == 0.21


def test_engines_are_summed_and_models_kept_apart() -> None:
    one, two = started((0.9, 0.5)), started((0.5, 0.1), drafts=10_000, engine="1", kv=0.8)
    other = Engine(model="other", generated=7)
    found = read(Moment([one, two, other]))
    both = found[one.model]
    assert set(found) == {one.model, "other"} and both.engines == 2
    assert both.counters["drafts"] == 50_000 and both.accepted_at == (41_000, 21_000)
    assert both.gauges == {"running": 4, "waiting": 0, "kv_usage": 0.8}
    assert both.histograms["ttft"].count == 80 and found["other"].counters["generation_tokens"] == 7


def test_what_is_not_a_number_is_not_known() -> None:
    lines = text(Moment([started((0.9,))])).replace("} 0.21", "} NaN").replace("} 40000.0", "} +Inf")
    samples, names = parse(Reply(lines.encode(), "", 0.0), "http://x")
    (reading,) = readings(Scrape(0.0, 0.0, samples, frozenset(names))).values()
    assert "kv_usage" not in reading.gauges and "drafts" not in reading.counters and not reading.speculates


def test_older_names_are_understood() -> None:
    old = text(Moment([started((0.9,))])).replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    old = old.replace("vllm:prefix_cache", "vllm:gpu_prefix_cache")
    old = old.replace("vllm:inter_token_latency", "vllm:time_per_output_token")
    samples, names = parse(Reply(old.encode(), "", 0.0), "http://x")
    (reading,) = readings(Scrape(0.0, 0.0, samples, frozenset(names))).values()
    assert reading.gauges["kv_usage"] == 0.21 and reading.counters["prefix_hits"] == 30_000
    assert reading.histograms["itl"].mean == pytest.approx(0.03)


@pytest.mark.parametrize("name", SCENES)
def test_the_recorded_texts_are_what_their_figures_make(name: str) -> None:
    assert tuple(raw.decode() for raw in recorded(name)) == made(name), "run `python tests/helpers/vllm_text.py`"


def test_tls_errors_of_certificates_are_named() -> None:
    error = Server("https://x")._unreachable(ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED"))
    assert error.kind == "tls" and "not trusted" in str(error)


def test_vllm_with_our_plugin_is_vllm() -> None:
    with staged(HEALTHY + "# TYPE augury:acceptance_length gauge\naugury:acceptance_length 1.5\n") as stage:
        assert scrape(Server(stage.url)).engine == "vLLM"
