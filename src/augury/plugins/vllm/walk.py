"""How far a draft agrees with what the target drew: the walk of the coupled rule.

Every row of a request has been drawn from the target with that position's noise, as plain decoding would draw it. The
drafted tokens only decide how many of those draws are valid: each is as long as all before it were drafted right.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _walk(draws, drafts, starts, sampled, counts, apart):  # type: ignore[no-untyped-def]
    request = tl.program_id(0)
    start = tl.load(starts + request)
    rows = tl.load(starts + request + 1) - start
    agrees = (rows > 0).to(tl.int32)
    count = agrees
    for row in range(rows - 1):
        drawn = tl.load(draws + start + row)
        tl.store(sampled + request * apart + row, drawn)
        agrees *= (tl.load(drafts + start + row + 1).to(tl.int64) == drawn).to(tl.int32)
        count += agrees
    any_row = rows > 0  # of a request without rows nothing is read, and nothing is written before its place
    last = tl.load(draws + start + rows - 1, mask=any_row, other=0)
    tl.store(sampled + request * apart + rows - 1, last, mask=any_row)
    tl.store(counts + request, count)


def walk(draws: Any, drafts: Any, starts: Any, steps: int) -> tuple[Any, Any]:
    """Draws of each request as [requests, steps + 1], and how many of them count.

    Row i of a request has drawn its token i; drafts[row i] is the token that row read, so the draft of token i stands
    in row i + 1. `starts` [requests + 1] says where each request's rows begin.
    """
    import torch

    requests = len(starts) - 1
    sampled = draws.new_empty(requests, steps + 1)
    counts = draws.new_empty(requests, dtype=torch.int32)
    _walk[(requests,)](draws, drafts, starts, sampled, counts, sampled.stride(0), num_warps=1)
    return sampled, counts
