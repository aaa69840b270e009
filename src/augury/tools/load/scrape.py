"""The server's own counters of speculation, read before and after, by the names that vLLM's bench gives them."""

from __future__ import annotations

import http.client
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

PREFIX = "vllm:spec_decode_num_"
SETTLED = 3.0  # seconds to wait until the last step has been counted


@dataclass(slots=True)
class Counted:
    """Counters of speculation at one moment, over all engines."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    positions: dict[int, float] = field(default_factory=dict)
    running: float = 0.0


def scrape(base: str, authorization: str | None = None, timeout: float = 5.0) -> Counted | None:
    """What /metrics says now; None where there is none, or no speculation in it."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        request = urllib.request.Request(f"{base}/metrics")
        if authorization:  # unredirected: another host that we are sent on to must not see it
            request.add_unredirected_header("Authorization", authorization)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read().decode()
        found, speculates = Counted(), False
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                speculates |= _add(found, sample.name, sample.labels, sample.value)
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None  # no metrics is no fault: other servers have none
    return found if speculates else None


def _add(found: Counted, name: str, labels: dict[str, str], value: float) -> bool:
    if name == "vllm:num_requests_running":
        found.running += value
    if not name.startswith(PREFIX) or name.endswith("_created"):
        return False
    which = name.removeprefix(PREFIX).removesuffix("_total")
    if which == "accepted_tokens_per_pos":
        position = int(labels["position"])
        found.positions[position] = found.positions.get(position, 0.0) + value
    elif which in ("drafts", "draft_tokens", "accepted_tokens"):
        setattr(found, which, getattr(found, which) + value)
    return True


def scrape_when_idle(base: str, authorization: str | None = None) -> Counted | None:
    """The counters once nothing runs any more, and two readings agree."""
    limit, before = time.monotonic() + SETTLED, scrape(base, authorization)
    while before is not None and time.monotonic() < limit:
        time.sleep(0.2)
        after = scrape(base, authorization)
        if after is None or (after == before and not after.running):
            return after
        before = after
    return before


def gained(before: Counted | None, after: Counted | None) -> Counted | None:
    """What was counted in between; None if that cannot be told, as after a restart."""
    if before is None or after is None or after.drafts < before.drafts:
        return None
    positions = {p: count - before.positions.get(p, 0.0) for p, count in after.positions.items()}
    return Counted(
        after.drafts - before.drafts, after.draft_tokens - before.draft_tokens,
        after.accepted_tokens - before.accepted_tokens, positions,
    )  # fmt: skip


def added(parts: list[Counted | None]) -> Counted | None:
    """Several stretches as one; None if one of them is unknown."""
    total = Counted()
    for part in parts:
        if part is None:
            return None
        total.drafts += part.drafts
        total.draft_tokens += part.draft_tokens
        total.accepted_tokens += part.accepted_tokens
        for position, count in part.positions.items():
            total.positions[position] = total.positions.get(position, 0.0) + count
    return total


def spec_decode_keys(counted: Counted | None) -> dict[str, Any]:
    """The keys of `vllm bench serve`; as there, the rate is in per cent and the positions are shares."""
    if counted is None or not counted.draft_tokens or not counted.drafts:
        return {}
    return {
        "spec_decode_acceptance_rate": 100 * counted.accepted_tokens / counted.draft_tokens,
        "spec_decode_acceptance_length": 1 + counted.accepted_tokens / counted.drafts,
        "spec_decode_num_drafts": int(counted.drafts),
        "spec_decode_draft_tokens": int(counted.draft_tokens),
        "spec_decode_accepted_tokens": int(counted.accepted_tokens),
        "spec_decode_per_position_acceptance_rates": [
            count / counted.drafts for _, count in sorted(counted.positions.items())
        ],
    }
