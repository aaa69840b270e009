"""What a rejection rule decides, the noise it is given, and the token that ends a step.

Three kinds of noise feed a step under these rules, and no two of them share a counter: DRAFT for a drafter that
samples, ACCEPT for the tests, RESAMPLE for the last token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from augury.methods.spec import MAX_NODES
from augury.verify.noise import ACCEPT, DRAFT, LOW_32, RESAMPLE, gumbel, philox, uniform
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, listed, path_to

STREAMS = 4  # purposes in verify/noise.py; a purpose plus a multiple of this is a stream of its own


class Verdict(NamedTuple):
    """The accepted part of every draft, and the distribution of the one token that follows."""

    path: Tensor  # int64 [G, N]: accepted node numbers from the root down, -1 past the end
    accepted: Tensor  # int64 [G]
    probs: Tensor  # float [G, V]: what the last token is drawn from; it need not sum to 1
    tokens: Tensor  # int64 [G, N]: the tokens of `path`, -1 past the end
    active: Tensor  # bool [G]: an inactive group emits nothing


def verdict_at(node: Tensor, probs: Tensor, draft: Draft, active: Tensor) -> Verdict:
    """The verdict that accepts every node down to int64 [G] `node` (-1: none)."""
    path = listed(path_to(torch.where(active, node, -1), draft.parents))
    tokens = torch.where(path >= 0, draft.tokens.gather(1, path.clamp(min=0)), -1)
    return Verdict(path, (path >= 0).sum(1), probs, tokens, active)


def draft_purpose(node: int, depth: int) -> int:
    """The stream that a sampling drafter must draw node `node` from, at that depth (children of the root: 1).

    `block` looks at drafted tokens below the node it ends at, so a later step may not draw again, for the same
    position, from noise that has already taken part in a decision; nor may two branches share their noise. Children
    drawn without replacement are the best of one draw, that of the first of them.
    """
    return DRAFT + STREAMS * (node + (MAX_NODES + 1) * (depth - 1))


def uniforms(seeds: Tensor, positions: Tensor, nodes: int) -> Tensor:
    """Acceptance noise in (0, 1), float32 [G, nodes], from int64 [G] seeds and the nodes' positions, int64 [G, nodes].

    A value is a function of (seed, position, node number, depth). The depth tells apart the steps that look at one
    position: the next step may have a node of the same number there, and `block` may have consulted this one.
    """
    if not nodes:
        return positions.new_zeros(len(seeds), 0, dtype=torch.float32)
    number, seeds = torch.arange(nodes, device=seeds.device).expand_as(positions), seeds[:, None]
    above = positions - positions[:, :1]  # node 0 is always a child of the root
    counter = number >> 2, positions & LOW_32, ACCEPT + STREAMS * above & LOW_32, positions >> 32 & LOW_32
    four = torch.stack(philox(counter, (seeds & LOW_32, seeds >> 32 & LOW_32)), dim=-1)
    return uniform(four.gather(-1, (number & 3)[..., None])[..., 0])


def last_noise(verdict: Verdict, seeds: Tensor, starts: Tensor) -> Tensor:
    """Noise for the token that ends each step, float32 [G, V]; `starts` is the position of the step's first token."""
    return gumbel(seeds, starts + verdict.accepted, RESAMPLE, verdict.probs.shape[1])


def finish(verdict: Verdict, noise: Tensor) -> Outcome:
    """Draw the last token as the argmax of log probs + noise [G, V]; ties go to the lowest, never to probability 0."""
    last = (verdict.probs.log() + noise).argmax(1, keepdim=True)
    column = torch.arange(verdict.path.shape[1] + 1, device=last.device)
    ends = verdict.active[:, None] & (column == verdict.accepted[:, None])
    blank = torch.full_like(last, -1)
    emitted = torch.where(ends, last, torch.cat([verdict.tokens, blank], dim=1))
    count = torch.where(verdict.active, verdict.accepted + 1, 0)
    return Outcome(emitted, count, verdict.accepted, verdict.path)
