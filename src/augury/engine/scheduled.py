"""What one request runs in a pass."""

from __future__ import annotations

from typing import NamedTuple

from augury.engine.request import Request

CONTINUES = -1  # a start that only the device knows: a pass in flight draws for the request


class ScheduledRequest(NamedTuple):
    """What one request runs in a pass."""

    request: Request
    start: int  # tokens already in the cache, or CONTINUES
    num_new_tokens: int  # tokens of its text to run: a prompt chunk, or the one drawn last
    nodes: int  # draft nodes to run after them; of a request that continues, the most that may be pending
    active: bool  # the pass reaches the end of the text, so a token is drawn
    scored: int  # of the new tokens, those that want logits: the last if active, all of a prompt to be scored
    steady: bool  # it drew a token in the pass before
    epoch: int
    reach: int  # no cache row at or past this is touched

    def column(self, block_size: int) -> tuple[int, ...]:
        """Its column of the table that the device reads; Segments.pack names the lines."""
        r, rows = self.request, len(self.request.blocks) * block_size
        return r.slot, self.start, self.num_new_tokens, self.nodes, self.scored, self.active, rows, r.allowed


def schedule_request(request: Request, num_new_tokens: int, nodes: int = 0) -> ScheduledRequest:
    """The request's next tokens and the first nodes of its draft."""
    start = request.sent
    end = start + num_new_tokens
    active = end == request.length
    asked = request.scores_prompt and start < request.prompt_len
    scored = num_new_tokens if asked else int(active)
    return ScheduledRequest(
        request, start, num_new_tokens, nodes, active, scored, request.decoding, request.epoch, end + nodes
    )


def decodes(request: Request) -> bool:
    """Whether its next pass runs one known token; False if what is in flight is certain to end it."""
    if request.draws_in_flight:
        return request.length + request.in_flight < request.max_len
    return request.pending == 1


def longest(request: Request) -> int:
    """The most tokens its text may have by the next pass, as far as that pass would run it."""
    if not request.draws_in_flight:
        return request.length
    return min(request.longest, request.max_len)
