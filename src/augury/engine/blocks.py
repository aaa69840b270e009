"""KV cache blocks: which are in use, and which hold a prefix that may be found again.

A block is in use (reference count above zero) or free. A free block may still hold a published prefix; it is handed out
only when no empty one is left, oldest first. Block 0 is the null block: padding rows write there and no request owns
it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile


class BlockPool:
    """Hands out physical blocks and finds those that already hold a given prefix."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks - 1  # the null block is never handed out
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))  # the next to hand out first
        self._references = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self.give_up: Callable[[Sequence[tuple[int, bytes]]], None] | None = None  # called before prefixes are lost

    @property
    def num_free(self) -> int:
        """Blocks that could be handed out now."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1."""
        return 1 - self.num_free / self.num_blocks

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks; what they held is forgotten. The caller has checked num_free."""
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        going = [(block, self._key_of[block]) for block in blocks if block in self._key_of]
        if going and self.give_up is not None:
            self.give_up(going)
        for block in blocks:
            self._forget(block)
            self._references[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Free a sequence's blocks, its last one first, so that a prefix is evicted after what continues it."""
        for block in reversed(list(blocks)):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._key_of:
                    self._free.move_to_end(block, last=False)  # holds nothing: the next to be handed out

    def publish(self, block: int, key: bytes) -> None:
        """Record that a block holds the prefix named by `key`; the first block with a key keeps it."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def count_known(self, keys: Iterable[bytes]) -> int:
        """How many blocks `share` would take."""
        return sum(1 for _ in takewhile(self._block_of.__contains__, keys))

    def share(self, keys: Iterable[bytes]) -> list[int]:
        """Take the blocks of the longest run of known keys, each with one more owner."""
        blocks = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
            blocks.append(block)
        return blocks

    def forget_all(self) -> None:
        """Drop every published prefix."""
        self._key_of.clear()
        self._block_of.clear()

    def check(self) -> None:
        """Assert that free and used blocks add up; cheap enough to run whenever the engine is idle."""
        used = {b for b in range(1, self.num_blocks + 1) if self._references[b] > 0}
        assert used.isdisjoint(self._free) and len(used) + len(self._free) == self.num_blocks, "blocks leaked"
        assert all(self._block_of[key] == block for block, key in self._key_of.items()), "prefix index is torn"

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]
