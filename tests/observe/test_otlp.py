"""OTLP's JSON: typed values, spans, and histograms that add up."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from augury.observe.otlp import ERROR, OK, SERVER, Distribution, Span, attributes, metrics, traces


def test_values_have_their_types() -> None:
    given = {"a": True, "b": 3, "c": 0.5, "d": "x", "e": ["y", 1], "f": None}
    assert attributes(given) == [
        {"key": "a", "value": {"boolValue": True}},
        {"key": "b", "value": {"intValue": "3"}},
        {"key": "c", "value": {"doubleValue": 0.5}},
        {"key": "d", "value": {"stringValue": "x"}},
        {"key": "e", "value": {"arrayValue": {"values": [{"stringValue": "y"}, {"intValue": "1"}]}}},
    ]


def test_spans_of_a_request() -> None:
    root = Span("a" * 32, "chat toy", "b" * 16, "", 10, 30, {"k": "v"}, SERVER)
    child = Span("a" * 32, "queue", "c" * 16, root.id, 10, 20, error="gone")
    body = traces("mine", "1.0", [root, child])
    [resource] = body["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "mine"}} in resource["resource"]["attributes"]
    first, second = resource["scopeSpans"][0]["spans"]
    assert first["status"] == {"code": OK} and "parentSpanId" not in first and first["startTimeUnixNano"] == "10"
    assert second["parentSpanId"] == root.id and second["status"] == {"code": ERROR, "message": "gone"}
    json.dumps(body, allow_nan=False)


@given(values=st.lists(st.floats(0, 100), max_size=50), bounds=st.lists(st.floats(0, 50), unique=True, max_size=6))
def test_a_histogram_adds_up(values: list[float], bounds: list[float]) -> None:
    bounds = sorted(bounds)
    made = Distribution("gen_ai.x", "s", bounds)
    for value in values:
        made.observe(value, {"gen_ai.operation.name": "chat"})
    points = made.encoded(1, 2)["histogram"]["dataPoints"]
    if not values:
        assert points == []
        return
    [point] = points
    counts = [int(count) for count in point["bucketCounts"]]
    assert sum(counts) == int(point["count"]) == len(values) and abs(point["sum"] - sum(values)) < 1e-6
    for number, bound in enumerate(bounds):  # a value at a bound belongs below it
        assert sum(counts[: number + 1]) == sum(value <= bound for value in values)
    assert metrics("s", "1", [made.encoded(1, 2)])["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["unit"] == "s"
