"""The n answers to one prompt: the first reads it, and the others queue when they can share its blocks.

Admitted together, each would read the whole prompt, because a block can be shared only when it is full and computed.
"""

from __future__ import annotations

from augury.engine.request import Request
from augury.engine.turns import Turns

WORTH = 64  # prompt tokens that sharing must save in all, because it delays the others' first token by a pass


class Siblings:
    """Answers that wait for another one to read their prompt; after that they queue like any request."""

    def __init__(self, waiting: Turns, block_size: int) -> None:
        self.num_held = 0
        self._waiting = waiting
        self._block_size = block_size
        self._families: dict[int, dict[Request, None]] = {}  # by prompt; the one that reads it comes first

    def add(self, request: Request) -> None:
        """Queue a new request, or hold it back while another reads its prompt and there is enough to share."""
        if (request.params.n - 1) * self._shareable(request) < WORTH:
            self._waiting.add(request)
            return
        family = self._families.setdefault(request.prompt, {})
        family[request] = None
        if len(family) == 1:
            self._waiting.add(request)
        else:
            self.num_held += 1

    def release(self, request: Request) -> None:
        """Queue the requests that wait for this one, if it has read as much of the prompt as can be shared."""
        family = self._families.get(request.prompt)
        if family is None or next(iter(family)) is not request or request.computed < self._shareable(request):
            return
        del self._families[request.prompt], family[request]
        self.num_held -= len(family)
        for sibling in family:
            self._waiting.add(sibling)

    def leave(self, request: Request) -> None:
        """Forget a request that has ended; if it was to read the prompt, the next one does."""
        family = self._families.get(request.prompt, {})
        if request not in family:
            return
        read = next(iter(family)) is request
        del family[request]
        if not family:
            del self._families[request.prompt]
            return
        self.num_held -= 1
        if read:
            self._waiting.add(next(iter(family)))

    def _shareable(self, request: Request) -> int:
        """Tokens of the prompt in full blocks, without the last token, which each runs for its logits."""
        return (request.prompt_len - 1) // self._block_size * self._block_size
