"""Recording rules: what speculation does, by engine and by model, under names of our own."""

from __future__ import annotations

from typing import Any

from augury.tools.monitor.settings import Settings

SPEC = "vllm:spec_decode_num_"
COUNTERS = {  # summed by engine; what a counter is called, and what its rate is called here
    "drafts": f"{SPEC}drafts_total",
    "draft_tokens": f"{SPEC}draft_tokens_total",
    "accepted_tokens": f"{SPEC}accepted_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "steps": "vllm:iteration_tokens_total_count",
    "step_tokens": "vllm:iteration_tokens_total_sum",
}


def recording(settings: Settings) -> dict[str, Any]:
    """The rule file, ready to be written as YAML."""
    rules = [*_engines(settings), *_models(settings)]  # one group: they are evaluated in order, and build on each other
    return {"groups": [{"name": "augury-recording", "rules": rules}]}


def _rule(name: str, expression: str) -> dict[str, str]:
    return {"record": f"augury:{name}", "expr": expression}


def _engines(settings: Settings) -> list[dict[str, str]]:
    """Rates of each engine: counters start anew when a server does, and `rate` sees to it."""
    chosen, engine = settings.selected(), ", ".join(settings.engine_labels)
    rules = [
        _rule(f"engine_{name}:rate5m", f"sum by ({engine}) (rate({counter}{chosen}[5m]))")
        for name, counter in COUNTERS.items()
    ]
    positions = {"accepted": f"{SPEC}accepted_tokens_per_pos_total"}
    if settings.ours:  # vLLM does not say how many drafts reached a position
        positions["draft"] = "augury:spec_decode_num_draft_tokens_per_pos_total"
    for name, counter in positions.items():
        expression = f"sum by ({engine}, position) (rate({counter}{chosen}[5m]))"
        rules.append(_rule(f"engine_position_{name}_tokens:rate5m", expression))
    accepted, drafted, drafts = (
        settings.recorded(f"engine_{name}:rate5m") for name in ("accepted_tokens", "draft_tokens", "drafts")
    )
    return [
        *rules,
        _rule("engine_acceptance:ratio_rate5m", f"{accepted} / ({drafted} > 0)"),
        _rule("engine_acceptance_length:mean5m", f"1 + {accepted} / ({drafts} > 0)"),
        _rule("engine_first_position:ratio_rate5m", f"{_first(settings)} / ({drafts} > 0)"),
    ]


def _first(settings: Settings) -> str:
    """Accepted first tokens; every draft has one, so all drafts are what they are a share of."""
    accepted = settings.recorded("engine_position_accepted_tokens:rate5m", 'position="0"')
    return f"sum by ({', '.join(settings.engine_labels)}) ({accepted})"


def _models(settings: Settings) -> list[dict[str, str]]:
    """Figures of each model over its engines: ratios of sums, not means of ratios; none where nothing happened."""
    model, recorded = ", ".join(settings.model_labels), settings.recorded

    def total(name: str) -> str:
        return f"sum by ({model}) ({recorded(f'engine_{name}:rate5m')})"

    def per(above: str, below: str) -> str:
        return f"{recorded(f'model_{above}:rate5m')} / ({recorded(f'model_{below}:rate5m')} > 0)"

    wasted = f"{recorded('model_draft_tokens:rate5m')} - {recorded('model_accepted_tokens:rate5m')}"
    running = f"avg_over_time({recorded('model_requests_running:sum')}[5m])"
    rules = [_rule(f"model_{name}:rate5m", total(name)) for name in COUNTERS if name not in ("steps", "step_tokens")]
    rules += [
        _rule("model_acceptance:ratio_rate5m", per("accepted_tokens", "draft_tokens")),
        _rule("model_acceptance_length:mean5m", f"1 + {per('accepted_tokens', 'drafts')}"),
        _rule("model_drafted_length:mean5m", per("draft_tokens", "drafts")),
        _rule("model_position_acceptance:ratio_rate5m", _by_position(settings, model)),
        _rule("model_wasted_tokens:rate5m", wasted),
        _rule("model_waste:ratio_rate5m", f"1 - {recorded('model_acceptance:ratio_rate5m')}"),
        _rule("model_step_tokens:mean5m", f"{total('step_tokens')} / ({total('steps')} > 0)"),
        _rule("model_prefix_cache_hit:ratio_rate5m", per("prefix_cache_hits", "prefix_cache_queries")),
        _rule("model_prefix_cache_hit:ratio_rate30m", _hits_over(settings, model, "30m")),
        *_gauges(settings, model),
        _rule("model_tokens_per_request:rate5m", f"{recorded('model_generation_tokens:rate5m')} / ({running} > 0)"),
    ]
    return rules


def _gauges(settings: Settings, model: str) -> list[dict[str, str]]:
    gauges = {
        "model_requests_running:sum": "sum vllm:num_requests_running",
        "model_requests_waiting:sum": "sum vllm:num_requests_waiting",
        "model_kv_cache_usage:max": "max vllm:kv_cache_usage_perc",
    }
    if settings.ours:
        gauges["model_speedup:min"] = "min augury:speedup_estimate"
    parts = {name: words.split() for name, words in gauges.items()}
    return [_rule(name, f"{how} by ({model}) ({gauge}{settings.selected()})") for name, (how, gauge) in parts.items()]


def _by_position(settings: Settings, model: str) -> str:
    def total(name: str) -> str:
        return f"sum by ({model}, position) ({settings.recorded(f'engine_position_{name}_tokens:rate5m')})"

    if settings.ours:
        return f"{total('accepted')} / ({total('draft')} > 0)"
    # over all drafts, as vLLM counts: with drafts of varying length late positions look worse than they are
    return f"{total('accepted')} / on ({model}) group_left () ({settings.recorded('model_drafts:rate5m')} > 0)"


def _hits_over(settings: Settings, model: str, window: str) -> str:
    hits, queries = (
        f"sum by ({model}) (rate(vllm:prefix_cache_{name}_total{settings.selected()}[{window}]))"
        for name in ("hits", "queries")
    )
    return f"{hits} / ({queries} > 0)"
