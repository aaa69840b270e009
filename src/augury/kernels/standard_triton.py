"""`standard` over chains in Triton: verify/rejection.py's rule, verdict for verdict."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.draw_triton import EXACT
from augury.kernels.rejection_triton import close, drafted_chance, last_tokens, prepare
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft


def standard(
    logits: Tensor,
    draws: Draws,
    sampling: SlotSampling,
    first: Tensor,
    draft: Draft,
    tests: Tensor,
    seeds: Tensor,
    starts: Tensor,
    chunk: int | None = None,
) -> Outcome:
    """What `rejection.standard` and `verdict.finish` decide, given acceptance noise [G, N] and the last token's key."""
    case = prepare(logits, draws, sampling, first, draft, tests, chunk)
    _, nodes, width = case.shape
    follow[(len(first),)](case.chain, case.ends, case.out, nodes, width, num_warps=1, **EXACT)
    return last_tokens(case, seeds, starts)


@triton.jit
def follow(chain, ends, out, nodes, width):
    """Walk down one group's chain while its nodes pass."""
    group = tl.program_id(0).to(tl.int64)
    root, count = tl.load(chain.first + group), tl.load(chain.count + group)
    count = tl.where(root >= 0, count, 0)
    at, refused, taken = root * 0 - 1, root * 0 - 1, root * 0
    for node in range(nodes):
        place = group * nodes + node
        token = tl.load(chain.tokens + place)
        tried = (node < count) & (token >= 0) & (refused < 0) & (tl.load(chain.parents + place) == at)
        drafted = drafted_chance(chain, place, token, tried, width)
        held = tl.load(chain.tests + place).to(tl.float64) * drafted < tl.load(chain.chance + place).to(tl.float64)
        passed = tried & (drafted > 0) & held
        refused = tl.where(tried & (passed == 0), node, refused)
        at = tl.where(passed, node, at)
        taken += passed.to(tl.int64)
    close(chain, ends, out, group, taken, refused, 1.0, nodes)
