"""What the ingress reads of a request's body: parsed once, within the server's limits, long ones off the event loop."""

from __future__ import annotations

from typing import NamedTuple

from augury.scale.prefix import Prefix, prefix_of
from augury.serve.reading import beside, parsed


class Asked(NamedTuple):
    """What decides which replica gets a request."""

    prefix: Prefix | None = None
    earlier: str | None = None  # id of the response that it continues from


async def read_asked(body: bytes, tenant: str) -> Asked:
    """Read a body for routing; raises ApiError if it holds too much. Invalid JSON is left for the replica to refuse."""
    return await beside(len(body), lambda: _asked(body, tenant))


def _asked(body: bytes, tenant: str) -> Asked:
    try:
        value = parsed(body)
    except (ValueError, RecursionError):
        return Asked()
    earlier = value.get("previous_response_id") if isinstance(value, dict) else None
    return Asked(prefix_of(value, tenant), earlier if isinstance(earlier, str) else None)
