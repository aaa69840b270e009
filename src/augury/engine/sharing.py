"""What a new request need not compute: blocks of its prefix that are on the device, or in host memory."""

from __future__ import annotations

from augury.engine.blocks import BlockPool
from augury.engine.offload import Offload
from augury.engine.prefix import extend_keys, scope_of
from augury.engine.request import Request
from augury.engine.saved_states import SavedStates
from augury.observe.stats import EngineStats


class Sharing:
    """The prefix cache as the scheduler sees it: blocks, the saved states that go with them, copies on the host."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        prefix_caching: bool,
        states: SavedStates | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.pool, self.states, self.offload = pool, states, offload
        self.block_size, self.prefix_caching = block_size, prefix_caching
        if offload is not None:
            pool.give_up = offload.keep

    def admitted(self, request: Request, restored: int, stats: EngineStats) -> None:
        """Count a new request's prefix cache hits; of the blocks found, the last `restored` were in host memory."""
        found = len(request.keys) * self.block_size
        request.cached_tokens, outside = found, restored * self.block_size
        stats.prefix_cache_queries += request.length
        stats.prefix_cache_hits += found - outside
        if self.offload is not None:
            stats.external_prefix_cache_queries += request.length - (found - outside)
            stats.external_prefix_cache_hits += outside

    def scope(self, request: Request) -> str | None:
        """The scope in which a request shares blocks; None: it does not share."""
        return scope_of(request, self.prefix_caching)

    def share(self, request: Request) -> list[int]:
        """Take the blocks on the device that hold a request's prefix, and set its `keys` to theirs."""
        keys = self._usable(request)
        shared = self.pool.share(keys if self.states is None else self.states.usable(request, keys))
        del request.keys[len(shared) :]
        return shared

    def bring_back(self, request: Request) -> int:
        """Fill the blocks after those it shares from host memory, as far as they are there; returns how many."""
        if self.offload is None:
            return 0
        have = len(request.keys)
        keys = self._usable(request)[have:]
        found = self.offload.bring_back(keys, request.blocks[have:])
        del request.keys[have + found :]
        for block, key in zip(request.blocks[have:], request.keys[have:], strict=False):
            self.pool.publish(block, key)
        return found

    def _usable(self, request: Request) -> list[bytes]:
        """The names of a request's blocks that need not be computed if they are found."""
        scope = self.scope(request)
        if scope is None or request.scores_prompt:
            return []
        extend_keys(request.keys, request.tokens, self.block_size, scope)
        # The last token must be run in any case: its logits are what the next token is drawn from.
        return request.keys[: (request.length - 1) // self.block_size]

    def forget_all(self) -> None:
        """Drop every cached prefix."""
        self.pool.forget_all()
        if self.states is not None:
            self.states.forget_all()
        if self.offload is not None:
            self.offload.forget_all()

    def check(self) -> None:
        """Assert that nothing has leaked; see BlockPool.check."""
        self.pool.check()
        if self.states is not None:
            self.states.check()
        if self.offload is not None:
            self.offload.check()
