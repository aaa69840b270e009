"""How the rest of a pass's token budget is shared out over unread prompts."""

from __future__ import annotations

from augury.engine.request import Request
from augury.engine.scheduled import ScheduledRequest, schedule_request

SCORED_ROWS = 128  # prompt tokens scored in one pass, at most: each costs a row of logits, which all requests wait for


def share_out(most: dict[Request, int], free_tokens: int) -> list[ScheduledRequest]:
    """Split the budget over unread prompts, oldest first, each with the most it may read in one pass: half for the
    oldest, so that it makes progress, the rest to the shortest."""
    give = dict.fromkeys(most, 0)
    oldest, scored = next(iter(most)), SCORED_ROWS
    first = free_tokens if len(most) == 1 else max(1, free_tokens // 2)
    for request, offer in [(oldest, first), *((r, free_tokens) for r in sorted(most, key=lambda r: r.pending))]:
        more = min(request.pending - give[request], offer, free_tokens, most[request] - give[request])
        if request.scores_prompt and request.sent < request.prompt_len:
            more = min(more, scored)
            scored -= more
        give[request] += more
        free_tokens -= more
    return [schedule_request(r, num_new_tokens) for r, num_new_tokens in give.items() if num_new_tokens > 0]
