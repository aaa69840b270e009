"""Who runs in the next pass: slots, blocks, prompt chunks, drafts.

Decoding requests come first, each with its pending draft; what is left of the token budget reads prompts. A request
that finds no block for its next token takes the newest request's: that one loses its slot and starts over from its
tokens later (its noise is keyed by position, so it says the same again). The oldest request always gets on, so all do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from augury.engine.blocks import BlockPool
from augury.engine.prefix import extend_keys
from augury.engine.request import Request
from augury.observe.stats import EngineStats


class ScheduledRequest(NamedTuple):
    """What one request runs in a pass."""

    request: Request
    start: int  # tokens already in the cache
    num_new_tokens: int  # tokens of its text to run: a prompt chunk, or the one drawn last
    nodes: int  # draft nodes to run after them

    active: bool  # the pass reaches the end of the text, so a token is drawn
    scored: int  # of the new tokens, those that want logits: the last if active, all of a prompt to be scored


def schedule_request(request: Request, num_new_tokens: int, nodes: int = 0) -> ScheduledRequest:
    """The request's next tokens and the first nodes of its draft."""
    start = request.computed
    active = start + num_new_tokens == request.length
    asked = request.scores_prompt and start < request.prompt_len
    return ScheduledRequest(request, start, num_new_tokens, nodes, active, num_new_tokens if asked else int(active))


def _arrival(request: Request) -> int:
    return request.arrival


class Scheduler:
    """Waiting and running requests, and the blocks they hold."""

    def __init__(
        self,
        pool: BlockPool,
        slots: int,
        block_size: int,
        token_budget: int,
        chunk: int,
        prefix_caching: bool,
        stats: EngineStats,
        lookahead: int = 0,
    ) -> None:
        self.pool = pool
        self.lookahead = lookahead  # cache rows a drafter writes ahead of the known text
        self.block_size = block_size
        self.token_budget = token_budget
        self.chunk = chunk or token_budget  # most prompt tokens of one request in a pass
        self.prefix_caching = prefix_caching
        self.stats = stats
        self.waiting: list[Request] = []  # oldest first
        self.running: list[Request] = []  # oldest first
        self.seated: list[Request] = []  # admitted by the last plan; their slots must be written
        self._free_slots = list(range(slots - 1, -1, -1))

    def add(self, request: Request) -> None:
        """Queue a request by its arrival: it may come late, because its grammar took a while to compile."""
        insort(self.waiting, request, key=_arrival)

    def plan(self) -> list[ScheduledRequest]:
        """Choose what runs in the next pass; empty when there is nothing to do."""
        self.seated = []
        size = self.block_size
        for request in [r for r in self.running if len(r.tokens) - r.computed == 1]:
            if len(request.tokens) > len(request.blocks) * size and request.slot >= 0:  # not preempted by one before it
                self._reserve(request, len(request.tokens))
        decoding = [r for r in self.running if len(r.tokens) - r.computed == 1]
        free_tokens = self.token_budget - len(decoding)
        scheduled = []
        for request in decoding:
            scheduled.append(self._schedule_decode(request, free_tokens))
            free_tokens -= scheduled[-1].nodes
        self._admit(free_tokens)
        scheduled += self._schedule_prompts(free_tokens, set(decoding))
        if self.lookahead:
            self._look_ahead(scheduled)
        return scheduled

    def commit(self, item: ScheduledRequest, accepted: int, kept: int) -> None:
        """After a pass: what is now in the cache, and which blocks are full and can be found by others."""
        request = item.request
        request.decoding = item.active
        ran = item.start + item.num_new_tokens
        # Of the drafts, only those that became part of the text stay; the last token kept has not been run.
        request.computed = min(ran + accepted, request.length - 1) if item.active and kept else ran
        if self.prefix_caching and request.computed // self.block_size > len(request.keys):
            done = len(request.keys)
            extend_keys(request.keys, request.tokens[: request.computed], self.block_size, request.tenant)
            for block, key in zip(request.blocks[done:], request.keys[done:], strict=False):
                self.pool.publish(block, key)

    def finish(self, request: Request) -> None:
        """Take a request out, running or waiting."""
        if request.slot >= 0:
            self._leave(request)
            return
        # Found by its number: thousands may wait, and all of them may leave at once.
        place = bisect_left(self.waiting, request.arrival, key=_arrival)
        if place < len(self.waiting) and self.waiting[place] is request:
            del self.waiting[place]

    def _schedule_decode(self, request: Request, free_tokens: int) -> ScheduledRequest:
        # A draft is a guess: it is cut to the blocks that are free once everyone's next token has its place.
        length, nodes = len(request.tokens), min(request.draft_nodes, free_tokens)
        if length + nodes > len(request.blocks) * self.block_size:
            rows = (len(request.blocks) + self.pool.num_free) * self.block_size
            nodes = min(nodes, rows - length)
            self._reserve(request, length + nodes)
        if request.decoding:
            return ScheduledRequest(request, length - 1, 1, nodes, True, 1)
        return schedule_request(request, 1, nodes)

    def _look_ahead(self, scheduled: list[ScheduledRequest]) -> None:
        """Reserve blocks for what a drafter writes after the text of this pass, if free: drafts preempt nobody."""
        for item in scheduled:
            if item.active:
                request = item.request
                rows = len(request.tokens) + item.nodes + 1 + self.lookahead
                need = -(-rows // self.block_size) - len(request.blocks)
                if need > 0:
                    request.blocks += self.pool.take(min(need, self.pool.num_free))

    def _reserve(self, request: Request, rows: int) -> None:
        """Get blocks for `rows` cache rows, if need be from the newest request, which may be this one."""
        need = -(-rows // self.block_size) - len(request.blocks)
        while need > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return
        if need > 0:
            request.blocks += self.pool.take(need)

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.preemptions += 1
        if len(request.prompt_logprobs) < request.prompt_len:
            request.prompt_logprobs.clear()  # the prompt is read again, and scored from its first token
        self.stats.preemptions += 1
        self.add(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self._free_slots.append(request.slot)
        self.pool.release(request.blocks)
        request.slot, request.blocks, request.keys = -1, [], []
        request.computed = request.draft_nodes = request.tabled = 0
        request.decoding = False

    def _admit(self, free_tokens: int) -> None:
        """Seat waiting requests while slots, blocks and budget last; a prompt's blocks are all taken at once."""
        while self.waiting and self._free_slots and free_tokens > 0:
            request = self.waiting[0]
            shared = self._shared_blocks(request)
            need = -(-request.length // self.block_size) - len(shared)
            if need > self.pool.num_free:
                self.pool.release(shared)
                return
            del self.waiting[0]
            request.blocks = shared + self.pool.take(need)
            request.computed = len(shared) * self.block_size
            request.slot = self._free_slots.pop()
            free_tokens -= request.pending
            if not request.preemptions:
                request.cached_tokens = request.computed
                self.stats.prefix_cache_queries += request.length
                self.stats.prefix_cache_hits += request.computed
            self.seated.append(request)
            self.running.append(request)
            self.running.sort(key=lambda r: r.arrival)

    def _shared_blocks(self, request: Request) -> list[int]:
        if not self.prefix_caching or request.scores_prompt:
            return []
        extend_keys(request.keys, request.tokens, self.block_size, request.tenant)
        # The last token must be run in any case: its logits are what the next token is drawn from.
        usable = (request.length - 1) // self.block_size
        shared = self.pool.share(request.keys[:usable])
        del request.keys[len(shared) :]
        return shared

    def _schedule_prompts(self, free_tokens: int, planned: set[Request]) -> list[ScheduledRequest]:
        """Split the budget over unread prompts: half for the oldest, so that it gets on, the rest to the shortest."""
        prompts = [r for r in self.running if r not in planned and r.slot >= 0 and r.pending > 0]
        if not prompts or free_tokens <= 0:
            return []
        give = dict.fromkeys(prompts, 0)
        oldest = prompts[0]
        first = free_tokens if len(prompts) == 1 else max(1, free_tokens // 2)
        for request, offer in [(oldest, first), *((r, free_tokens) for r in sorted(prompts, key=lambda r: r.pending))]:
            more = min(request.pending - give[request], offer, free_tokens, self.chunk - give[request])
            give[request] += more
            free_tokens -= more
        return [schedule_request(r, num_new_tokens) for r, num_new_tokens in give.items() if num_new_tokens > 0]
