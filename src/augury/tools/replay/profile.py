"""A replay for programs: the conditions of the figures, and one profile per configuration."""

from __future__ import annotations

from typing import Any

from augury.observe.machine import cpu_name, versions_of
from augury.tools.replay.figures import Summary
from augury.tools.replay.replay import Log
from augury.tools.replay.traces import TraceReader
from augury.tools.shared.profile import make_profile

PACKAGES = ("augury", "numpy", "numba", "tokenizers")


def conditions_of(reader: TraceReader, log: Log, tokenizer: str, max_model_len: int | None) -> dict[str, Any]:
    """The conditions of the figures."""
    return {
        "files": [
            {"name": path.name, "bytes": path.stat().st_size, "format": reader.formats.get(str(path))}
            for path in reader.paths
        ],
        "conversations": log.conversations,
        "responses": len(log.turns),
        "without_response": log.without_response,
        "sent_again": log.resent,
        "torn_records": len(reader.torn),
        "cut_by_max_model_len": log.cut,
        "prompt_tokens": log.prompt_tokens,
        "response_tokens": log.response_tokens,
        "tenants": len(log.tenants),
        "tokenizer": tokenizer,
        "max_model_len": max_model_len,
        "limit": reader.limit,
        "model": "none: recorded text",
        "temperature": "as recorded",
        "acceptance": "drafted tokens equal to the recorded ones (coupled, greedy)",
        "batch": 1,
        "order": "as recorded, one response after another; each response's first token comes from prefill",
        "hardware": cpu_name(),
        "versions": versions_of({name: name for name in PACKAGES}),
    }


def profile_of(summary: Summary, config: dict[str, Any], conditions: dict[str, Any]) -> dict[str, Any]:
    """One configuration as a speculation_profile.json; what that has no field for is under `replay`."""
    tokens, told = max(summary.tokens, len(summary.accepted_at)), {**conditions, "speculative_config": config}
    counts = summary.accepted_at, summary.total.drafts, summary.lengths, summary.per_request
    profile = make_profile(summary.method, tokens, *counts, told)
    profile["per_category"] = {
        label: {"mean_accept_length": round(part.acceptance_length, 6), **part.as_record()}
        for label, part in summary.by_class.items()
    }
    profile["replay"] = {
        "name": summary.name,
        **summary.total.as_record(),
        "accept_rates_where_drafted": [round(rate, 6) for rate in summary.where_drafted],
        "drafted_per_position": summary.drafted_at,
        "accepted_per_position": summary.accepted_at,
        "by_turn": {str(turn): part.as_record() for turn, part in summary.by_turn.items()},
        "first_tenth": summary.first_tenth and summary.first_tenth.as_record(),
        "last_tenth": summary.last_tenth and summary.last_tenth.as_record(),
        "course": [part.as_record() for part in summary.course],
        "draft_us": {"p50": summary.times.p50, "p99": summary.times.p99, "samples": summary.times.samples},
        "walk_us_per_emitted_token": round(summary.times.per_token, 3),
        "walk_tokens_per_second": round(summary.times.tokens_per_second),
        "index_bytes": summary.bytes,
        "index_bytes_per_token": round(summary.bytes_per_token, 2),
    }
    return profile
