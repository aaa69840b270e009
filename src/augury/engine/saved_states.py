"""States of recurrent layers that are kept for other requests, named like the blocks they belong to.

A block of keys and values serves any text that begins alike; a recurrent state serves only texts that continue from
exactly where it was taken. So states are saved in passing where a text may continue: at the end of a prompt, where two
prompts are seen to differ, every so many blocks, and after the answer as it grows (of these only the newest is kept).
A new request can share the longest run of known blocks that ends at a saved state.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from augury.engine.blocks import BlockPool
from augury.engine.request import Request
from augury.engine.scheduled import ScheduledRequest
from augury.model.states import NEVER


@dataclass(slots=True)
class _Saving:
    """What is saved for one running request."""

    last: int  # tokens up to which its prompt may be shared
    branch: int  # tokens after which it differs from what was known before
    found: int  # the line it began with, -1: none; kept until its first pass is over
    since: int  # when it was admitted
    at: int = NEVER  # the prefix that is saved next
    line: int = -1  # and where
    newest: bytes | None = None  # the newest state after its answer


class SavedStates:
    """Which line holds the state after which prefix; the least recently used goes first."""

    def __init__(self, pool: BlockPool, block_size: int, lines: Sequence[int], every: int) -> None:
        self.num_lines = len(lines)
        self._pool, self._block_size, self._every = pool, block_size, every
        self._free = list(lines)
        self._line_of: OrderedDict[bytes, int] = OrderedDict()
        self._used_at: dict[bytes, int] = {}  # when each was last made or found, counted in such events
        self._now = 0
        self._in_use: Counter[int] = Counter()  # lines that a request has yet to start from
        self._savings: dict[Request, _Saving] = {}
        self._parting: dict[Request, int] = {}  # blocks that were known when a request was last looked at
        self._sent: dict[int, tuple[int, int]] = {}  # by slot: what the device has been told

    @property
    def num_saved(self) -> int:
        """States that can be found."""
        return len(self._line_of)

    def usable(self, request: Request, keys: list[bytes]) -> list[bytes]:
        """The longest run of known blocks that ends at a saved state."""
        known = self._parting[request] = self._pool.count_known(keys)
        return keys[: next((i for i in range(known, 0, -1) if keys[i - 1] in self._line_of), 0)]

    def admit(self, request: Request) -> None:
        """Note that a request takes a slot; its `keys` are those of the blocks it shares."""
        found = -1
        if request.keys:
            found = self._line_of[request.keys[-1]]
            self._use(request.keys[-1])
            self._in_use[found] += 1
        last = (request.length - 1) // self._block_size * self._block_size
        branch = self._parting.pop(request, 0) * self._block_size
        self._savings[request] = _Saving(last, branch, found, self._now)

    def leave(self, request: Request) -> None:
        """Free the line of a request that leaves its slot."""
        self._parting.pop(request, None)
        saving = self._savings.pop(request, None)
        if saving is not None:
            self._begun(saving)
            if saving.line >= 0:
                self._free.append(saving.line)

    def found(self, request: Request) -> int:
        """The line that an admitted request begins with, -1 if it begins at its first token."""
        saving = self._savings.get(request)
        return -1 if saving is None else saving.found

    def bound(self, request: Request) -> int:
        """How many prompt tokens may be read before a state is due."""
        saving = self._savings.get(request)
        if saving is None or request.sent >= saving.last:
            return NEVER
        return self._next(saving, request.sent) - request.sent

    def plan(self, scheduled: list[ScheduledRequest]) -> tuple[list[int], list[int], list[int]]:
        """What has changed for the device: slots, the prefixes to save in each, the lines these go to."""
        changed = {}
        for request in (item.request for item in scheduled):
            saving = self._savings.get(request)
            wanted = NEVER, 0
            if saving is not None:
                if saving.at == NEVER and self._has_line(saving, request.sent >= saving.last):
                    # Beyond what passes in flight may reach, so that the text has yet to pass what is planned.
                    saving.at = self._next(saving, request.longest if request.draws_in_flight else request.sent)
                wanted = saving.at, max(0, saving.line)
            if self._sent.get(request.slot) != wanted:
                self._sent[request.slot] = changed[request.slot] = wanted
        return list(changed), [at for at, _ in changed.values()], [line for _, line in changed.values()]

    def ran(self, request: Request, length: int) -> None:
        """Note that a pass has advanced a request to `length` tokens; a state saved on the way can be found now."""
        saving = self._savings.get(request)
        if saving is None:
            return
        self._begun(saving)
        if saving.at <= length:
            self._publish(saving, request.keys[saving.at // self._block_size - 1])
            saving.at = NEVER

    def forget_all(self) -> None:
        """Drop every saved state."""
        for key, line in list(self._line_of.items()):
            if not self._in_use[line]:
                self._free.append(self._drop(key))

    def check(self) -> None:
        """Assert that no line is lost or owned twice."""
        held = [saving.line for saving in self._savings.values() if saving.line >= 0]
        owned = [*self._free, *self._line_of.values(), *held]
        assert len(owned) == len(set(owned)) == self.num_lines, "lines of states leaked"

    def _next(self, saving: _Saving, position: int) -> int:
        """The next prefix after `position` to save: in the answer every block, in the prompt only some."""
        size = self._block_size
        if position >= saving.last:
            return (position // size + 1) * size
        every = (position // (self._every * size) + 1) * self._every * size
        return min(end for end in (every, saving.branch, saving.last) if end > position)

    def _has_line(self, saving: _Saving, answers: bool) -> bool:
        """Whether there is a line to save to; one after an answer takes none that was used since the request began."""
        if saving.line < 0 and self._free:
            saving.line = self._free.pop()
        if saving.line < 0:
            oldest = next((key for key, line in self._line_of.items() if not self._in_use[line]), None)
            if oldest is not None and not (answers and self._used_at[oldest] > saving.since):
                saving.line = self._drop(oldest)
        return saving.line >= 0

    def _use(self, key: bytes) -> None:
        self._now += 1
        self._used_at[key] = self._now
        self._line_of.move_to_end(key)

    def _drop(self, key: bytes) -> int:
        """Forget a state and return the line that held it."""
        del self._used_at[key]
        return self._line_of.pop(key)

    def _publish(self, saving: _Saving, key: bytes) -> None:
        """Name the state that was saved; if it is one kept only for the answer's end, the last such one is dropped."""
        if key in self._line_of:
            self._use(key)
            return
        self._line_of[key], saving.line = saving.line, -1
        self._use(key)
        if saving.at <= saving.last or saving.at % (self._every * self._block_size) == 0:
            return
        before, saving.newest = saving.newest, key
        if before is not None and before in self._line_of and not self._in_use[self._line_of[before]]:
            saving.line = self._drop(before)

    def _begun(self, saving: _Saving) -> None:
        if saving.found >= 0:
            self._in_use[saving.found] -= 1
            saving.found = -1
