"""The Grafana dashboard: the health of speculation, its cost, the latency users see, and the server's load.

`dashboard.yml` lists the panels, `grafana.yml` the settings that Grafana requires around them.
"""

from __future__ import annotations

from typing import Any

from augury.tools.monitor.settings import KitSettings
from augury.tools.shared.templates import fill

WIDTH = 24  # Grafana's columns
BY_MODEL = "sum by (model_name)"
MODEL = 'model_name=~"$model_name"'
Steps = list[tuple[float | None, str]]
PLAIN: Steps = [(None, "blue")]


def dashboard(settings: KitSettings) -> dict[str, Any]:
    """The dashboard, ready to be written as JSON and imported."""
    grafana = fill("monitor/grafana.yml", s=settings, chosen_model=settings.selected(MODEL))
    whole: dict[str, Any] = grafana["dashboard"]
    if named := settings.datasource:
        whole["templating"]["list"][0]["current"] = {"text": named, "value": named, "selected": True}
    queries = _queries(settings)
    rows = fill("monitor/dashboard.yml", s=settings, **queries)
    return whole | {"panels": _laid_out(rows, _steps(settings, queries["plain"]["title"]), grafana)}


def _queries(settings: KitSettings) -> dict[str, Any]:
    """Queries, functions that build queries, and texts for the panels, by the names that dashboard.yml uses."""
    chosen = settings.selected(MODEL, 'engine=~"$engine"')

    def rate(counter: str, by: str = BY_MODEL) -> str:
        return f"{by} (rate({counter}{chosen}[$interval]))"

    def spec(name: str, by: str = BY_MODEL) -> str:
        return rate(f"vllm:spec_decode_num_{name}_total", by)

    def gauge(name: str, how: str = "sum") -> str:
        return f"{how} by (model_name) ({name}{chosen})"

    def over(above: str, below: str) -> str:
        return f"{above} / ({below} > 0)"

    def quantile(share: float, name: str) -> str:
        bucket = rate(f"vllm:{name}_seconds_bucket", "sum by (model_name, le)")
        return f"histogram_quantile({share}, {bucket})"

    by_position = "sum by (model_name, position)"
    accepted = spec("accepted_tokens_per_pos", by_position)
    if settings.ours:
        positions = over(accepted, rate("augury:spec_decode_num_draft_tokens_per_pos_total", by_position))
    else:
        positions = f"{accepted} / on (model_name) group_left () ({spec('drafts')} > 0)"
    most = gauge("augury:num_speculative_tokens", "max") if settings.ours else f"count by (model_name) ({accepted})"
    running = f"avg_over_time(({gauge('vllm:num_requests_running')})[$interval:])"
    return {
        "rate": rate,
        "spec": spec,
        "gauge": gauge,
        "over": over,
        "quantile": quantile,
        "acceptance": over(spec("accepted_tokens"), spec("draft_tokens")),
        "length": f"1 + {over(spec('accepted_tokens'), spec('drafts'))}",
        "positions": positions,
        "limit": most,
        "plain": _plain(
            settings, over(rate("vllm:generation_tokens_total"), running), gauge("augury:speedup_estimate", "min")
        ),
        "band": f"Band of {settings.method.name}: {_band(settings)}.",
        "position": _position_text(settings),
    }


def _band(settings: KitSettings) -> str:
    band = settings.band
    if band is None:
        return "none is known"
    rate = f"rate {band.rate[0]:.2f} to {band.rate[1]:.2f}" if band.rate else "no rate"
    length = f"length {band.length[0]:g} to {band.length[1]:g}" if band.length else "no length"
    return f"{rate}, {length} ({band.where}; at K={settings.k})"


def _position_text(settings: KitSettings) -> str:
    late = "all drafts, as vLLM counts: with drafts of varying length late ones look worse than they are"
    bar = settings.min_position
    pays = f"Under {bar:.2f} one seldom pays." if bar else "A look-up has no bar for late ones."
    over = "drafts that reached it" if settings.ours else late
    return f"Share of accepted drafts at each position, over {over}. {pays}"


def _plain(settings: KitSettings, each: str, estimate: str) -> dict[str, str]:
    """Title, text and query of the speed-up panel; without an estimate or a baseline, of the speed itself."""
    title, plain = "Speed-up against plain", settings.baseline_tok_s
    if settings.ours:
        text = "Estimated from steps with and without drafts at the same number of requests. Under 1 it does harm."
        return {"title": title, "text": text, "expr": estimate}
    if plain is not None:
        text = f"Tokens a second and request, over the {plain:g} of plain decoding that were given to monitor init."
        return {"title": title, "text": text, "expr": f"({each}) / {plain:g}"}
    text = (
        "vLLM does not measure its speed-up. Measure the server without speculation (augury bench serve) and give "
        "the figure to augury monitor init --baseline-tok-s; then this panel shows the ratio."
    )
    return {"title": "Tokens a second and request", "text": text, "expr": each}


def _steps(settings: KitSettings, title: str) -> dict[str, Steps]:
    """Threshold colours, each from a value upwards, by the names that the panels use."""
    low, healthy, bar = settings.min_acceptance or 0.3, settings.healthy, settings.min_position
    rate: Steps = [(None, "yellow"), (low, "green")]
    if healthy and healthy > low:
        rate = [(None, "red"), (low, "yellow"), (healthy, "green")]
    band = settings.band.length if settings.band else None
    good = max(settings.length_one + 0.01, min(band[0] if band else 1.5, settings.long_length))
    return {
        "rate": rate,
        "length": [(None, "red"), (settings.length_one, "yellow"), (good, "green")],
        "position": [(None, "red"), (bar, "yellow"), (max(0.6, bar), "green")] if bar else PLAIN,
        "plain": [(None, "red"), (1.0, "green")] if title.startswith("Speed-up") else PLAIN,
    }


def _laid_out(rows: list[dict[str, Any]], steps: dict[str, Steps], grafana: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels numbered and placed from left to right, row by row."""
    made: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        if "row" in row:
            place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
            head = {"id": len(made) + 1, "type": "row", "title": row["row"], "gridPos": place}
            made.append(head | {"collapsed": False, "panels": []})
            y += 1
        x = height = 0
        for panel in row["panels"]:
            width, tall = panel.get("width", 8), panel.get("height", 8)
            if x + width > WIDTH:
                x, y, height = 0, y + height, 0
            place = {"h": tall, "w": width, "x": x, "y": y}
            made.append(_panel(len(made) + 1, panel, place, steps, grafana))
            x, height = x + width, max(height, tall)
        y += height
    return made


def _panel(
    number: int, panel: dict[str, Any], place: dict[str, int], steps: dict[str, Steps], grafana: dict[str, Any]
) -> dict[str, Any]:
    kind = panel["kind"]
    made = {"id": number, "type": kind, "title": panel["title"], "description": panel["text"], "gridPos": place}
    made["options"] = grafana["options"][kind]
    if "queries" not in panel:
        return made
    wanted = panel.get("steps", PLAIN)
    fields = _fields(kind, panel, steps[wanted] if isinstance(wanted, str) else wanted, grafana)
    return made | {"datasource": grafana["source"], "targets": _targets(kind, panel, grafana), "fieldConfig": fields}


def _targets(kind: str, panel: dict[str, Any], grafana: dict[str, Any]) -> list[dict[str, Any]]:
    instant, legends = kind in ("stat", "bargauge"), panel.get("legends", ["{{model_name}}"])
    return [
        {
            "refId": chr(ord("A") + i),
            "datasource": grafana["source"],
            "editorMode": "code",
            "expr": expr,
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
        }
        for i, (expr, legend) in enumerate(zip(panel["queries"], legends, strict=True))
    ]


def _fields(kind: str, panel: dict[str, Any], steps: Steps, grafana: dict[str, Any]) -> dict[str, Any]:
    colors = [{"color": color, "value": value} for value, color in steps]
    defaults: dict[str, Any] = {
        "unit": panel.get("unit", "short"),
        "min": 0,
        "color": {"mode": grafana["colors"].get(kind, "palette-classic")},
        "thresholds": {"mode": "absolute", "steps": colors},
        "custom": grafana["custom"].get(kind, {}),
    }
    if kind == "timeseries" and len(steps) > 1:  # the band behind the lines
        defaults["custom"] = defaults["custom"] | {"thresholdsStyle": {"mode": "dashed+area"}}
    defaults |= {name: panel[key] for key, name in (("most", "max"), ("decimals", "decimals")) if key in panel}
    return {"defaults": defaults, "overrides": []}
