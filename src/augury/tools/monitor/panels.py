"""Panels of a Grafana dashboard, as its JSON has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
WIDTH = 24
Steps = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and what its lines are called."""

    expr: str
    legend: str = "{{model_name}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """What a panel shows; where it stands is the dashboard's business."""

    kind: str
    title: str
    text: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    width: int = 8
    height: int = 8
    steps: tuple[tuple[float | None, str], ...] = ((None, BLUE),)
    most: float | None = None
    decimals: int | None = None

    def build(self, number: int, x: int, y: int) -> dict[str, Any]:
        """The panel's JSON at a place."""
        made: dict[str, Any] = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.text,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "options": OPTIONS[self.kind],
        }
        if self.kind == "row":
            return {key: made[key] for key in ("id", "type", "title", "gridPos")} | {"collapsed": False, "panels": []}
        if not self.queries:
            return made
        return made | {"datasource": SOURCE, "targets": self._targets(), "fieldConfig": self._fields()}

    def _targets(self) -> list[dict[str, Any]]:
        instant = self.kind in ("stat", "bargauge")
        return [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
            }
            for number, query in enumerate(self.queries)
        ]

    def _fields(self) -> dict[str, Any]:
        coloured = len(self.steps) > 1
        mode = {"stat": "thresholds", "bargauge": "thresholds", "status-history": "continuous-RdYlGr"}
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "min": 0,
            "color": {"mode": mode.get(self.kind, "palette-classic")},
            "thresholds": {
                "mode": "absolute",
                "steps": [{"color": color, "value": value} for value, color in self.steps],
            },
            "custom": CUSTOM.get(self.kind, {}),
        }
        if self.kind == "timeseries" and coloured:  # the band behind the lines
            defaults["custom"] = defaults["custom"] | {"thresholdsStyle": {"mode": "dashed+area"}}
        if self.most is not None:
            defaults["max"] = self.most
        if self.decimals is not None:
            defaults["decimals"] = self.decimals
        return {"defaults": defaults, "overrides": []}


_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_TOOLTIP = {"mode": "multi", "sort": "desc"}
OPTIONS: dict[str, dict[str, Any]] = {
    "row": {},
    "stat": {
        "reduceOptions": _REDUCED, "colorMode": "value", "graphMode": "none", "justifyMode": "auto",
        "orientation": "auto", "textMode": "auto",
    },
    "timeseries": {"legend": _LEGEND, "tooltip": _TOOLTIP},
    "status-history": {
        "legend": {**_LEGEND, "showLegend": False}, "tooltip": _TOOLTIP, "showValue": "auto", "rowHeight": 0.9,
        "colWidth": 0.9,
    },
    "bargauge": {
        "reduceOptions": _REDUCED, "orientation": "vertical", "displayMode": "basic", "valueMode": "color",
        "showUnfilled": True, "minVizWidth": 8, "minVizHeight": 16,
    },
    "alertlist": {
        "alertName": "Augury", "alertInstanceLabelFilter": "", "dashboardAlerts": False, "folder": "",
        "groupBy": [], "groupMode": "default", "maxItems": 20, "sortOrder": 1, "viewMode": "list",
        "stateFilter": {"firing": True, "pending": True, "error": True, "noData": False, "normal": False},
    },
}  # fmt: skip
CUSTOM: dict[str, dict[str, Any]] = {
    "timeseries": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": False},
    "status-history": {"fillOpacity": 90, "lineWidth": 0},
}


def laid_out(rows: list[list[Panel]]) -> list[dict[str, Any]]:
    """Panels numbered and placed: each row of them from left to right, one row below the other."""
    made, y, number = [], 0, 1
    for row in rows:
        x, height = 0, 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            made.append(panel.build(number, x, y))
            x, height, number = x + panel.width, max(height, panel.height), number + 1
        y += height
    return made


def row(title: str) -> list[Panel]:
    """A heading over the panels that follow."""
    return [Panel("row", title, "", width=WIDTH, height=1)]
