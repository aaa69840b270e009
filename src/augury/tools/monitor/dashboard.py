"""The Grafana dashboard: is speculation healthy, what does it cost, what do users feel, how full is the server."""

from __future__ import annotations

from typing import Any

from augury.tools.monitor.panels import GREEN, RED, YELLOW, Panel, Query, laid_out, row
from augury.tools.monitor.settings import Settings

SCHEMA = 41  # Grafana 11.6 and later; older ones migrate it
BY_MODEL = "sum by (model_name)"
INTERVALS = ("1m", "5m", "15m", "30m", "1h")


def dashboard(settings: Settings) -> dict[str, Any]:
    """The dashboard, ready to be written as JSON and imported."""
    writer = Panels(settings)
    rows = [
        writer.now(), row("Acceptance"), writer.acceptance(), row("What it costs and brings"), writer.worth(),
        row("What users feel"), writer.latency(), row("Load"), writer.load(), row("Alerts"), writer.alerts(),
    ]  # fmt: skip
    return {
        "uid": "augury-spec-decode",
        "title": "Augury: speculative decoding",
        "description": f"Written by `augury monitor init` for {settings.method.name}, K={settings.k}.",
        "tags": ["augury", "vllm", "speculative-decoding"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(settings)},
        "annotations": {"list": []},
        "links": [],
        "panels": laid_out(rows),
    }


def _variables(settings: Settings) -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    named = settings.datasource
    chosen = {"text": named, "value": named, "selected": True} if named else {}

    def labels(name: str, selector: str) -> dict[str, Any]:
        query = f"label_values(vllm:generation_tokens_total{selector}, {name})"
        return {
            "name": name, "label": name, "type": "query", "datasource": source,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
            "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"], "selected": True}, "options": [],
            "hide": 0, "regex": "",
        }  # fmt: skip

    steps = [{"text": step, "value": step, "selected": step == "5m"} for step in INTERVALS]
    return [
        {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "refresh": 1,
         "current": chosen, "options": [], "hide": 0, "regex": "", "includeAll": False, "multi": False},
        labels("model_name", settings.selected()),
        labels("engine", settings.selected('model_name=~"$model_name"')),
        {"name": "interval", "label": "averaged over", "type": "interval", "query": ",".join(INTERVALS),
         "options": steps, "current": {"text": "5m", "value": "5m", "selected": True}, "hide": 0, "refresh": 2,
         "auto": False, "auto_count": 30, "auto_min": "10s"},
    ]  # fmt: skip


class Panels:
    """Writes the panels for one choice of settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        low, healthy = settings.min_acceptance or 0.3, settings.healthy
        steps = [(None, RED), (low, YELLOW), *([(healthy, GREEN)] if healthy and healthy > low else [])]
        self.rate_steps = tuple(steps) if healthy and healthy > low else ((None, YELLOW), (low, GREEN))
        band = settings.method.band.length if settings.method.band else None
        good = max(settings.length_one + 0.01, min(band[0] if band else 1.5, settings.long_length))
        self.length_steps = ((None, RED), (settings.length_one, YELLOW), (good, GREEN))
        bar = settings.min_position
        self.position_steps = ((None, RED), (bar, YELLOW), (max(0.6, bar), GREEN)) if bar else ((None, "blue"),)
        self.band = f"Band of {settings.method.name}: {self._band()}."

    def _band(self) -> str:
        band = self.settings.method.band
        if band is None:
            return "none is known"
        rate = f"rate {band.rate[0]:.2f} to {band.rate[1]:.2f}" if band.rate else "no rate"
        length = f"length {band.length[0]:g} to {band.length[1]:g}" if band.length else "no length"
        return f"{rate}, {length} ({band.where})"

    def _rate(self, counter: str, by: str = BY_MODEL) -> str:
        chosen = self.settings.selected('model_name=~"$model_name"', 'engine=~"$engine"')
        return f"{by} (rate({counter}{chosen}[$interval]))"

    def _spec(self, name: str, by: str = BY_MODEL) -> str:
        return self._rate(f"vllm:spec_decode_num_{name}_total", by)

    def _gauge(self, name: str, how: str = "sum") -> str:
        chosen = self.settings.selected('model_name=~"$model_name"', 'engine=~"$engine"')
        return f"{how} by (model_name) ({name}{chosen})"

    def _over(self, above: str, below: str) -> str:
        return f"{above} / ({below} > 0)"

    def _acceptance(self) -> str:
        return self._over(self._spec("accepted_tokens"), self._spec("draft_tokens"))

    def _length(self) -> str:
        return f"1 + {self._over(self._spec('accepted_tokens'), self._spec('drafts'))}"

    def _positions(self) -> str:
        by = "sum by (model_name, position)"
        accepted = self._spec("accepted_tokens_per_pos", by)
        if self.settings.ours:
            return self._over(accepted, self._rate("augury:spec_decode_num_draft_tokens_per_pos_total", by))
        return f"{accepted} / on (model_name) group_left () ({self._spec('drafts')} > 0)"

    def _quantiles(self, histogram: str) -> tuple[Query, ...]:
        bucket = self._rate(f"vllm:{histogram}_bucket", "sum by (model_name, le)")
        return tuple(
            Query(f"histogram_quantile({share}, {bucket})", f"{{{{model_name}}}} p{share * 100:.0f}")
            for share in (0.5, 0.99)
        )

    def _against_plain(self) -> tuple[str, str, Query]:
        """Title, explanation and query of the speed-up, as good as it can be told."""
        each = self._over(self._rate("vllm:generation_tokens_total"),
                          f"avg_over_time(({self._gauge('vllm:num_requests_running')})[$interval:])")  # fmt: skip
        if self.settings.ours:
            text = "Estimated from steps with and without drafts at the same number of requests. Under 1 it does harm."
            return "Speed-up against plain", text, Query(self._gauge("augury:speedup_estimate", "min"))
        if self.settings.baseline_tok_s is not None:
            plain = f"{self.settings.baseline_tok_s:g}"
            text = f"Tokens a second and request, over the {plain} of plain decoding that were given to monitor init."
            return "Speed-up against plain", text, Query(f"({each}) / {plain}")
        text = (
            "vLLM does not measure its speed-up. Measure the server without speculation (augury bench serve) and give "
            "the figure to augury monitor init --baseline-tok-s; then this panel shows the ratio."
        )
        return "Tokens a second and request", text, Query(each)

    def now(self) -> list[Panel]:
        """The figures of the moment."""
        title, text, query = self._against_plain()
        steps = ((None, RED), (1.0, GREEN)) if title.startswith("Speed-up") else ((None, "blue"),)
        waste = f"1 - {self._acceptance()}"
        firing = 'sum(ALERTS{alertname=~"Augury.*",alertstate="firing",severity!="info"}) or vector(0)'
        return [
            Panel("stat", "Acceptance rate", f"Accepted over drafted tokens, without the target's own. {self.band}",
                  (Query(self._acceptance()),), "percentunit", 4, 4, self.rate_steps),
            Panel("stat", "Acceptance length", f"Tokens a step and request, the target's own included. {self.band}",
                  (Query(self._length()),), "short", 4, 4, self.length_steps, decimals=2),
            Panel("stat", "Wasted drafts", "Share of drafted tokens that were verified and thrown away.",
                  (Query(waste),), "percentunit", 4, 4),
            Panel("stat", "Tokens generated a second", "What users receive, over all requests.",
                  (Query(self._rate("vllm:generation_tokens_total")),), "short", 4, 4),
            Panel("stat", title, text, (query,), "short", 4, 4, steps, decimals=2),
            Panel("stat", "Alerts firing", "Of the rules that augury monitor init wrote; notices are not counted.",
                  (Query(firing, "alerts"),), "short", 4, 4, ((None, GREEN), (1.0, RED))),
        ]  # fmt: skip

    def acceptance(self) -> list[Panel]:
        """Rate, length, and every position."""
        over = "drafts that reached it" if self.settings.ours else (
            "all drafts, as vLLM counts: with drafts of varying length late ones look worse than they are"
        )  # fmt: skip
        bar = self.settings.min_position
        position = f"Share of accepted drafts at each position, over {over}."
        position += f" Under {bar:.2f} one seldom pays." if bar else " A look-up has no bar for late ones."
        legend = "{{model_name}} {{position}}"
        return [
            Panel("timeseries", "Acceptance rate", f"Accepted over drafted tokens. {self.band}",
                  (Query(self._acceptance()),), "percentunit", 12, 8, self.rate_steps, 1.0),
            Panel("timeseries", "Acceptance length", f"Tokens a step, the target's own included. {self.band}",
                  (Query(self._length()),), "short", 12, 8, self.length_steps, decimals=2),
            Panel("status-history", "Acceptance by position", f"{position} A sharp edge: K is too large.",
                  (Query(self._positions(), legend),), "percentunit", 16, 8, self.position_steps, 1.0),
            Panel("bargauge", "Acceptance by position, now", position,
                  (Query(self._positions(), legend),), "percentunit", 8, 8, self.position_steps, 1.0),
        ]  # fmt: skip

    def worth(self) -> list[Panel]:
        """Drafted against accepted, K, speed-up."""
        title, text, query = self._against_plain()
        drafted = Query(self._over(self._spec("draft_tokens"), self._spec("drafts")), "{{model_name}} drafted, mean")
        if self.settings.ours:
            limit = Query(self._gauge("augury:num_speculative_tokens", "max"), "{{model_name}} allowed")
        else:
            counted = self._spec("accepted_tokens_per_pos", "sum by (model_name, position)")
            limit = Query(f"count by (model_name) ({counted})", "{{model_name}} configured")
        return [
            Panel("timeseries", "Drafted and accepted tokens a second", "The gap between the two lines is waste.",
                  (Query(self._spec("draft_tokens"), "{{model_name}} drafted"),
                   Query(self._spec("accepted_tokens"), "{{model_name}} accepted"))),
            Panel("timeseries", "K in use", "Tokens in a draft, on average, and the most there may be.",
                  (drafted, limit), decimals=1),
            Panel("timeseries", title, text, (query,), decimals=2),
        ]  # fmt: skip

    def latency(self) -> list[Panel]:
        """What users feel."""
        return [
            Panel("timeseries", "Time to first token", "Speculation leaves it alone; a lost prefix cache does not.",
                  self._quantiles("time_to_first_token_seconds"), "s"),
            Panel("timeseries", "Time per output token", "Per request, so it shows what speculation brings. vLLM's "
                  "inter-token latency is observed once a step, not once a token: it does not.",
                  self._quantiles("request_time_per_output_token_seconds"), "s"),
            Panel("timeseries", "Tokens run in a step", "Prompt and generated tokens over steps: near the budget the "
                  "target computes all the time and drafts are no longer free.",
                  (Query(self._over(self._rate("vllm:iteration_tokens_total_sum"),
                                    self._rate("vllm:iteration_tokens_total_count"))),)),
        ]  # fmt: skip

    def load(self) -> list[Panel]:
        """How full the server is."""
        hits = self._over(self._rate("vllm:prefix_cache_hits_total"), self._rate("vllm:prefix_cache_queries_total"))
        return [
            Panel("timeseries", "Requests", "Running and waiting. A queue that grows while drafts are good: cut K.",
                  (Query(self._gauge("vllm:num_requests_running"), "{{model_name}} running"),
                   Query(self._gauge("vllm:num_requests_waiting"), "{{model_name}} waiting")), width=6),
            Panel("timeseries", "KV cache in use", "The fullest engine. Acceptance falls as it climbs: memory first.",
                  (Query(self._gauge("vllm:kv_cache_usage_perc", "max")),), "percentunit", 6,
                  steps=((None, GREEN), (0.8, YELLOW), (0.95, RED)), most=1.0),
            Panel("timeseries", "Prefix cache hits", "Share of prompt tokens found in the cache; compare with before "
                  "speculation was on.", (Query(hits),), "percentunit", 6, most=1.0),
            Panel("timeseries", "Preemptions a second", "Requests that lost their slot, and their drafts with it.",
                  (Query(self._rate("vllm:num_preemptions_total")),), width=6),
        ]  # fmt: skip

    def alerts(self) -> list[Panel]:
        """What is firing."""
        return [
            Panel("alertlist", "Alerts", "Firing and pending alerts of augury-alerts.yml; each names its first step.",
                  width=24, height=7),
        ]  # fmt: skip
