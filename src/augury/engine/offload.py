"""Cold prefixes in host memory: what the device's prefix cache evicts is kept there, and is copied back on a hit.

A block keeps the name that it had in the prefix cache (prefix.py), so it serves the texts that it served there, and
only its own tenant's. The least recently used goes first. A block that was copied back stays here as well, so that
evicting it again costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from augury.engine.host_lines import HostLines
from augury.observe.stats import EngineStats


class Offload:
    """Which line of host memory holds which prefix."""

    def __init__(self, lines: HostLines, stats: EngineStats) -> None:
        self._lines, self._stats = lines, stats
        self._free = list(range(lines.num_lines - 1, -1, -1))
        self._line_of: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        # Called with the source and target of every copy; lines have numbers below 0 there, which no block has.
        self.copied: Callable[[Sequence[int], Sequence[int]], None] | None = None

    @property
    def num_kept(self) -> int:
        """Blocks that can be found."""
        return len(self._line_of)

    def keep(self, given_up: Sequence[tuple[int, bytes]]) -> None:
        """Store blocks that are about to be overwritten, under their names."""
        going: dict[int, int] = {}  # the block that each line takes; of two for one line the later stays
        for block, key in given_up:
            if key in self._line_of:
                self._line_of.move_to_end(key)
                continue
            line = self._free.pop() if self._free else self._line_of.popitem(last=False)[1]
            self._line_of[key] = line
            going[line] = block
        if going:
            self._lines.store(list(going.values()), list(going))
            self._stats.offloaded_blocks += len(going)
            if self.copied is not None:
                self.copied(list(going.values()), [~line for line in going])

    def bring_back(self, keys: Sequence[bytes], blocks: Sequence[int]) -> int:
        """Fill blocks with the prefixes of these names, up to the first that is not here; returns how many."""
        found: dict[bytes, int] = {}
        for key in keys:
            line = self._line_of.get(key)
            if line is None:
                break
            if not self._lines.whole(line):
                self._free.append(self._line_of.pop(key))
                self._stats.damaged_blocks += 1
                break
            found[key] = line
        for key in reversed(found):  # the beginning counts as used last, so that it outlives what continues it
            self._line_of.move_to_end(key)
        if found:
            self._lines.load(list(found.values()), blocks[: len(found)])
            if self.copied is not None:
                self.copied([~line for line in found.values()], blocks[: len(found)])
        return len(found)

    def forget_all(self) -> None:
        """Drop all blocks."""
        self._free += self._line_of.values()
        self._line_of.clear()

    def check(self) -> None:
        """Assert that no line is lost or owned twice."""
        owned = [*self._free, *self._line_of.values()]
        assert len(owned) == len(set(owned)) == self._lines.num_lines, "lines of host memory leaked"
