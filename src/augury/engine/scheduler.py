"""Which requests run in the next pass: slots, blocks, prompt chunks, drafts.

Decoding requests come first, each with its pending draft; the rest of the token budget reads prompts. If there is no
block for a request's next token, the newest request is preempted: it loses its slot and is computed again from its
tokens later (its noise is keyed by position, so its text is the same). The oldest request always makes progress, so
all do. Slots go to clients in turn (turns.py), and if no slot is free, or no block (crowding.py), a client that
holds many gives up its newest for one that holds few. The n answers to one prompt read it once (siblings.py). With
recurrent layers, a prefix is shared up to a saved state (saved_states.py); what the cache had to evict may be in host
memory (offload.py).
"""

from __future__ import annotations

from augury.engine.blocks import BlockPool
from augury.engine.crowding import crowding, giving_way, newest_of_many
from augury.engine.offload import Offload
from augury.engine.prefix import extend_keys
from augury.engine.prompt_shares import share_out
from augury.engine.request import Request
from augury.engine.saved_states import SavedStates
from augury.engine.scheduled import CONTINUES, ScheduledRequest, decodes, longest, schedule_request
from augury.engine.sharing import Sharing
from augury.engine.siblings import Siblings
from augury.engine.turns import Turns
from augury.observe.stats import EngineStats


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
        states: SavedStates | None = None,
        switch_length: int = 0,
        offload: Offload | None = None,
    ) -> None:
        self.pool, self.states = pool, states
        self.switch_length = switch_length  # a text that grows past this is read again; 0: none is
        self.lookahead = lookahead  # cache rows a drafter writes ahead of the known text
        self.block_size = block_size
        self.token_budget = token_budget
        self.chunk = chunk or token_budget  # most prompt tokens of one request in a pass
        self.sharing = Sharing(pool, block_size, prefix_caching, states, offload)
        self.stats = stats
        self.waiting = Turns()
        self.siblings = Siblings(self.waiting, block_size)
        self.running: list[Request] = []  # oldest first
        self.seated: list[Request] = []  # admitted by the last plan; their slots must be written
        self._free_slots = list(range(slots - 1, -1, -1))

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self.waiting) + self.siblings.num_held

    def add(self, request: Request) -> None:
        """Queue a request, unless it has to wait for another answer to its prompt first."""
        request.long = 0 < self.switch_length < request.length
        self.siblings.add(request)

    def plan(self) -> list[ScheduledRequest]:
        """Choose what runs in the next pass; empty when there is nothing to do before a pass in flight has landed."""
        self.seated = []
        if not self._make_room():
            return []
        decoding = [r for r in self.running if decodes(r)]
        for request in decoding:
            rows = longest(request)
            lacks = rows > len(request.blocks) * self.block_size and request.slot >= 0  # not preempted by one before it
            if lacks and not self._reserve(request, rows):
                return []
        decoding = [r for r in decoding if r.slot >= 0]
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

    def launched(self, scheduled: list[ScheduledRequest]) -> None:
        """Note that a pass was launched."""
        for item in scheduled:
            request = item.request
            request.in_flight += 1
            request.decoding = item.active
            request.longest = item.reach + 1
            if item.start != CONTINUES:
                request.sent = item.start + item.num_new_tokens

    def failed(self, scheduled: list[ScheduledRequest]) -> None:
        """Undo `launched` for a pass that failed."""
        for item in scheduled:
            if item.epoch == item.request.epoch:
                item.request.in_flight -= 1
                item.request.sent = item.request.computed

    def commit(self, request: Request, ran: int, accepted: int, kept: int) -> None:
        """Record what the cache holds after a pass that ran the first `ran` tokens, and publish blocks to share."""
        # Of the drafts, only those that became part of the text stay; the last token kept has not been run.
        request.computed = min(ran + accepted, len(request.tokens) - 1) if kept else ran
        request.in_flight -= 1
        if not request.in_flight:
            request.sent = request.computed
        done = len(request.keys)
        if request.computed // self.block_size > done and (scope := self.sharing.scope(request)) is not None:
            extend_keys(request.keys, request.tokens[: request.computed], self.block_size, scope)
            for block, key in zip(request.blocks[done:], request.keys[done:], strict=False):
                self.pool.publish(block, key)
        if self.states is not None:
            self.states.ran(request, ran)
        self.siblings.release(request)

    def _before_switch(self, request: Request, length: int) -> int:
        """Tokens that may follow before the text's keys have to be rotated otherwise."""
        return max(0, self.switch_length - length) if self.switch_length and not request.long else self.token_budget

    def sound(self, request: Request, emitted: int) -> int:
        """How many of a pass's tokens are valid: past the switch, they should have been drawn with other keys."""
        return min(emitted, self._before_switch(request, request.length) + 1)

    def switch(self, request: Request) -> None:
        """Have a text that has grown past the switch read again, because its keys are rotated otherwise now."""
        if self.switch_length and request.slot >= 0 and not request.long and request.length > self.switch_length:
            request.long = True
            self.restart(request)

    def restart(self, request: Request) -> None:
        """Have a request read its text again, and drop what is in flight for it."""
        self._preempt(request)

    def forget_prefixes(self) -> None:
        """Drop every cached prefix."""
        self.sharing.forget_all()

    def check(self) -> None:
        """Assert that nothing has leaked; see BlockPool.check."""
        self.sharing.check()

    def finish(self, request: Request) -> None:
        """Take a request out, running or waiting."""
        if request.slot >= 0:
            self._leave(request)
        else:
            self.waiting.remove(request)
        self.siblings.leave(request)

    def _schedule_decode(self, request: Request, free_tokens: int) -> ScheduledRequest:
        # Drafts are optional: one is cut to the blocks that are free once every request's next token has a place.
        continues = request.draws_in_flight
        length, drafted = longest(request), request.allowed if continues else request.draft_nodes
        nodes = min(drafted, free_tokens, self._before_switch(request, length))
        if length + nodes > len(request.blocks) * self.block_size:
            rows = (len(request.blocks) + self.pool.num_free) * self.block_size
            nodes = min(nodes, rows - length)
            self._reserve(request, length + nodes)
        if not continues:
            return schedule_request(request, 1, nodes)
        return ScheduledRequest(request, CONTINUES, 1, nodes, True, 1, True, request.epoch, length + nodes)

    def known(self, item: ScheduledRequest) -> ScheduledRequest:
        """Fill in what the host did not know of a request that continues, now that every pass before has landed."""
        if item.start != CONTINUES:
            return item
        rows = len(item.request.blocks) * self.block_size
        return schedule_request(item.request, 1, min(item.request.draft_nodes, item.nodes, rows - item.request.length))

    def _look_ahead(self, scheduled: list[ScheduledRequest]) -> None:
        """Reserve blocks for what a drafter writes after the text of this pass, if free: drafts never preempt."""
        for item in scheduled:
            if item.active:
                request = item.request
                rows = item.reach + 1 + self.lookahead
                need = -(-rows // self.block_size) - len(request.blocks)
                if need > 0:
                    request.blocks += self.pool.take(min(need, self.pool.num_free))

    def _reserve(self, request: Request, rows: int) -> bool:
        """Get blocks for `rows` cache rows, if need be by preempting others, or this request if it has to give way.

        No request is preempted while a pass is in flight, since the pass may end requests: then it returns False.
        """
        need = -(-rows // self.block_size) - len(request.blocks)
        while need > self.pool.num_free:
            if any(r.in_flight for r in self.running):
                return False
            victim = giving_way(self.running, request, need)
            self._preempt(victim)
            if victim is request:
                return True
        if need > 0:
            request.blocks += self.pool.take(need)
        return True

    def _make_room(self) -> bool:
        """Preempt the newest request of a client that holds many slots or blocks for one that waits and holds few.

        One for each pass. As in `_reserve` not while a pass is in flight, which may free some: then it returns False.
        """
        victim = self._in_the_way(self.waiting.first) if self.waiting else None
        if victim is None:
            return True
        if any(r.in_flight for r in self.running):
            return False
        self._preempt(victim)
        return True

    def _in_the_way(self, newcomer: Request) -> Request | None:
        """The request to preempt for the first that waits, or None."""
        if self._free_slots:
            need = self._lacking(newcomer)
            return crowding(self.running, newcomer, need) if need > self.pool.num_free else None
        holder = self.waiting.holder(newcomer)
        return newest_of_many(self.running, holder) if holder else None

    def _lacking(self, request: Request) -> int:
        """Blocks that a waiting request needs, without those it can share if there are too few free ones."""
        blocks = -(-request.length // self.block_size)
        if blocks <= self.pool.num_free:
            return blocks
        shared = self.sharing.share(request)
        self.pool.release(shared)
        return blocks - len(shared)

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.preemptions += 1
        if len(request.prompt_logprobs) < request.prompt_len:
            request.prompt_logprobs.clear()  # the prompt is read again, and scored from its first token
        self.stats.preemptions += 1
        self.waiting.add(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.waiting.count(request, -1)
        self._free_slots.append(request.slot)
        self.pool.release(request.blocks)
        if self.states is not None:
            self.states.leave(request)
        request.slot, request.blocks, request.keys = -1, [], []
        request.computed = request.sent = request.draft_nodes = request.tabled = request.in_flight = 0
        request.decoding = False
        request.epoch += 1

    def _admit(self, free_tokens: int) -> None:
        """Seat waiting requests while slots, blocks and budget last; a prompt's blocks are all taken at once."""
        while self.waiting and self._free_slots and free_tokens > 0:
            request = self.waiting.first
            shared = self.sharing.share(request)
            need = -(-request.length // self.block_size) - len(shared)
            if need > self.pool.num_free:
                self.pool.release(shared)
                return
            self.waiting.count(request, 1)
            self.waiting.remove(request)
            request.blocks = shared + self.pool.take(need)
            restored = self.sharing.bring_back(request)
            request.computed = request.sent = (len(shared) + restored) * self.block_size
            request.slot = self._free_slots.pop()
            if self.states is not None and self.sharing.scope(request) is not None:
                self.states.admit(request)
            free_tokens -= request.pending
            if not request.preemptions:
                self.sharing.admitted(request, restored, self.stats)
            self.seated.append(request)
            self.running.append(request)
            self.running.sort(key=lambda r: r.arrival)
            self.siblings.release(request)  # where all of the prompt was found

    def _schedule_prompts(self, free_tokens: int, planned: set[Request]) -> list[ScheduledRequest]:
        """Split the budget over unread prompts: half for the oldest, which must progress, the rest to the shortest."""
        prompts = [
            r for r in self.running if r not in planned and r.slot >= 0 and r.pending > 0 and not r.draws_in_flight
        ]
        if not prompts or free_tokens <= 0:
            return []
        most = {r: self.chunk if self.states is None else min(self.chunk, self.states.bound(r)) for r in prompts}
        return share_out(most, free_tokens)
