"""The server's own speculation counters, read before and after, under the keys of vLLM's bench."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from augury.tools.live.drafting import Drafting
from augury.tools.live.reading import over_all
from augury.tools.live.scrape import scrape
from augury.tools.live.window import whole
from augury.tools.shared.http import Server, Unreadable

SETTLED = 3.0  # seconds to wait until the last step has been counted


class Counted(NamedTuple):
    """Speculation counters and running requests at one moment, over all engines and models."""

    drafting: Drafting
    running: float


def counted(server: Server) -> Counted | None:
    """The counters in /metrics now; None if the server has no metrics or no speculation counters."""
    try:
        reading = over_all(scrape(server))
    except Unreadable:
        return None
    return Counted(whole(reading), reading.gauges.get("running", 0.0)) if reading.speculates else None


def counted_when_idle(base: str, authorization: str | None = None) -> Drafting | None:
    """The counters once nothing is running and two readings agree, or after three seconds."""
    server = Server(base)
    server.authorization = authorization
    limit, before = time.monotonic() + SETTLED, counted(server)
    while before is not None and time.monotonic() < limit:
        time.sleep(0.2)
        after = counted(server)
        settled = after is None or (after == before and not after.running)
        before = after
        if settled:
            break
    return before.drafting if before else None


def gained(before: Drafting | None, after: Drafting | None) -> Drafting | None:
    """The difference of two readings; None if it is unknown, as after a restart."""
    if before is None or after is None or after.drafts < before.drafts:
        return None
    return after - before


def spec_decode_keys(parts: list[Drafting | None]) -> dict[str, Any]:
    """The keys of `vllm bench serve` over all parts; as there, the rate is a percentage and positions are shares."""
    known = [part for part in parts if part is not None]
    total = sum(known, Drafting())
    if len(known) < len(parts) or total.rate is None or total.length is None:
        return {}
    return {
        "spec_decode_acceptance_rate": 100 * total.rate,
        "spec_decode_acceptance_length": total.length,
        "spec_decode_num_drafts": int(total.drafts),
        "spec_decode_draft_tokens": int(total.drafted),
        "spec_decode_accepted_tokens": int(total.accepted),
        "spec_decode_per_position_acceptance_rates": total.marginal,
    }
