"""The metrics of several replicas on one page, read back by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from augury.scale.counts import RouterCounts
from augury.scale.merged_metrics import merged
from augury.scale.router import Choice


def page(scale: float) -> str:
    registry = CollectorRegistry()
    Counter("vllm:tokens", "Tokens of {all}.", ("model_name",), registry=registry).labels('a "b" {c} d').inc(scale)
    Gauge("plain", "No labels.", registry=registry).set(-scale)
    Histogram("seconds", "Times.", ("part",), buckets=(1, 2), registry=registry).labels("x").observe(scale)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)  # each family once, its samples together
    found = [sample for family in families for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}


def test_every_sample_carries_its_replica_and_nothing_else_changes() -> None:
    pages = {"r1": page(1), "r2": page(2)}
    wanted = {
        (name, labels | {("replica", replica)}): value
        for replica, text in pages.items()
        for (name, labels), value in samples(text).items()
    }
    assert samples(merged(pages)) == wanted


def test_the_router_counts_what_it_did() -> None:
    counts = RouterCounts()
    counts.chosen(Choice("r1", "held", 3), 5)
    counts.chosen(Choice("r1", "home", 0), 2)
    counts.lost("r2")
    found = samples(merged({"r1": page(1)}) + counts.page())
    assert found["augury:router_prefix_blocks_found_total", frozenset({("replica", "r1")})] == 3
    assert found["augury:router_prefix_blocks_total", frozenset({("replica", "r1")})] == 7
    assert found["augury:router_requests_total", frozenset({("replica", "r1"), ("why", "held")})] == 1
    assert found["augury:router_replicas_lost_total", frozenset({("replica", "r2")})] == 1


def test_no_replica_is_an_empty_page() -> None:
    assert merged({}) == ""
