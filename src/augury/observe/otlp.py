"""OpenTelemetry's wire format (OTLP) in JSON: spans and histograms as objects that a collector accepts over HTTP."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SERVER, INTERNAL = 2, 1  # kinds of spans
OK, ERROR = 1, 2  # their status
CUMULATIVE = 2
Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work; times are in nanoseconds since 1970."""

    trace: str  # 32 hexadecimal digits
    name: str
    id: str  # 16 hexadecimal digits
    parent: str  # empty for none
    begin: int
    end: int
    attributes: Attributes = field(default_factory=dict)
    kind: int = INTERNAL
    error: str | None = None

    def encoded(self) -> dict[str, Any]:
        """The span as an OTLP object."""
        status = {"code": OK} if self.error is None else {"code": ERROR, "message": self.error}
        return {
            "traceId": self.trace,
            "spanId": self.id,
            **({"parentSpanId": self.parent} if self.parent else {}),
            "name": self.name,
            "kind": self.kind,
            "startTimeUnixNano": str(self.begin),
            "endTimeUnixNano": str(self.end),
            "attributes": attributes(self.attributes),
            "status": status,
        }


class Distribution:
    """A histogram since the start, one set of counts for each set of attributes."""

    def __init__(self, name: str, unit: str, bounds: Sequence[float]) -> None:
        self.name, self.unit, self._bounds = name, unit, list(bounds)
        self._points: dict[tuple[tuple[str, Any], ...], tuple[list[int], list[float]]] = {}  # counts, and the sum

    def observe(self, value: float, told: Attributes) -> None:
        """Count a value."""
        counts, total = self._points.setdefault(tuple(told.items()), ([0] * (len(self._bounds) + 1), [0.0]))
        counts[bisect_left(self._bounds, value)] += 1
        total[0] += value

    def encoded(self, begin: int, now: int) -> dict[str, Any]:
        """The histogram as an OTLP object; times are in nanoseconds since 1970."""
        points = [
            {
                "attributes": attributes(dict(told)),
                "startTimeUnixNano": str(begin),
                "timeUnixNano": str(now),
                "count": str(sum(counts)),
                "sum": total[0],
                "bucketCounts": [str(count) for count in counts],
                "explicitBounds": self._bounds,
            }
            for told, (counts, total) in self._points.items()
        ]
        histogram = {"aggregationTemporality": CUMULATIVE, "dataPoints": points}
        return {"name": self.name, "unit": self.unit, "histogram": histogram}


def attributes(given: Attributes) -> list[dict[str, Any]]:
    """Attributes as a list of keys and typed values; what is None is left out."""
    return [{"key": key, "value": _value(value)} for key, value in given.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}


def traces(service: str, version: str, spans: Sequence[Span]) -> dict[str, Any]:
    """The body of a request to /v1/traces."""
    inner = {"scope": {"name": "augury", "version": version}, "spans": [span.encoded() for span in spans]}
    return {"resourceSpans": [{"resource": _resource(service, version), "scopeSpans": [inner]}]}


def metrics(service: str, version: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The body of a request to /v1/metrics."""
    inner = {"scope": {"name": "augury", "version": version}, "metrics": list(found)}
    return {"resourceMetrics": [{"resource": _resource(service, version), "scopeMetrics": [inner]}]}


def _resource(service: str, version: str) -> dict[str, Any]:
    return {"attributes": attributes({"service.name": service, "service.version": version})}
