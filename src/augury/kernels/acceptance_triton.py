"""Acceptance noise of the rejection rules in one kernel: verify/verdict.py's `uniforms`, bit for bit."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.layout_triton import shape_of
from augury.kernels.philox_triton import philox, uniform, word_of
from augury.verify import noise, verdict

ACCEPT, STREAMS = tl.constexpr(noise.ACCEPT), tl.constexpr(verdict.STREAMS)


def uniforms(seeds: Tensor, ends: Tensor, parents: Tensor) -> Tensor:
    """Noise in (0, 1) for every node, float32 [G, N]; `ends` is the position of each group's first drafted token."""
    groups, nodes = parents.shape
    out = torch.empty(groups, nodes, dtype=torch.float32, device=parents.device)
    if nodes:
        wide = triton.next_power_of_2(max(2, nodes))
        _uniforms[(groups,)](seeds, ends, parents, out, nodes, LEVELS=nodes.bit_length(), NODES=wide, num_warps=1)
    return out


@triton.jit(do_not_specialize=["nodes"])
def _uniforms(seeds, ends, parents, out, nodes, LEVELS: tl.constexpr, NODES: tl.constexpr):
    g, n = tl.program_id(0), tl.arange(0, NODES)
    parent = tl.load(parents + g * nodes + n, mask=n < nodes, other=-2)
    depth, _ = shape_of(parent, n, LEVELS, NODES)
    u = node_uniforms(n, depth, tl.load(ends + g), tl.load(seeds + g))
    tl.store(out + g * nodes + n, u, mask=n < nodes)


@triton.jit
def node_uniforms(n, depth, ends, seed):
    """The uniform of every node: a function of (seed, position, number, depth)."""
    purpose = ((depth - 1) * STREAMS + ACCEPT).to(tl.uint32)
    a, b, c, d = philox((n // 4).to(tl.int64), ends - 1 + depth, seed, purpose)
    return uniform(word_of(n, a, b, c, d))
