"""Names for prefixes: each full block is named by its tokens and by the name of the block before it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from augury.engine.request import Request


def scope_of(request: Request, prefix_caching: bool) -> str | None:
    """The scope in which its blocks can be found: its tenant's requests, or without a prefix cache its n answers alone.

    Without a cache nothing outlives a request, but its n answers read their prompt once. None if there is only one.
    """
    # A text past the switch has other keys and values than a shorter one, and so has one with another adapter.
    other = ("\0\0long" if request.long else "") + (f"\0{request.lora.key}" if request.lora else "")
    if prefix_caching:
        return request.tenant + other
    return f"{request.prompt}{other}" if request.params.n > 1 else None


def extend_keys(keys: list[bytes], tokens: Sequence[int], block_size: int, scope: str = "") -> None:
    """Append the names of the full blocks of `tokens` that `keys` does not have yet.

    Names differ by scope, because a shorter wait for a prompt would reveal that it was sent before.
    """
    for block in range(len(keys), len(tokens) // block_size):
        content = np.asarray(tokens[block * block_size : (block + 1) * block_size], dtype=np.int64).tobytes()
        keys.append(blake2b((keys[-1] if keys else scope.encode()) + content, digest_size=16).digest())
