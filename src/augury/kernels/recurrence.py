"""What recurrent layers do to rows: a short convolution, and a linear recurrence with a matrix as its state.

One recurrence serves all families. A row has a key and a query (of size K), a value (of size V), a decay and, for the
delta rule, a rate; the state S is K x V:

    S <- decay * S
    S <- S + key (x) write,   write = value, or rate * (value - S^T key) under the delta rule
    out = S^T query

Rows of a group are absorbed one after the other, in the order of the text and never in chunks: so the numbers do not
depend on how a text was cut into passes. The draft's nodes continue from their parents' states and leave no trace in
what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from augury.kernels.faces import face

COLUMNS = 16  # of a state in one block, on a CPU


def make_memory(lines: int, heads: int, keys: int, values: int, device: torch.device) -> Tensor:
    """Zeroed states, [lines, heads, blocks, keys, columns of a block]; on a CPU a block fits the first-level cache."""
    width = COLUMNS if device.type == "cpu" else max(1, values)
    return torch.zeros(lines, heads, -(-values // width), keys, width, device=device)


def read_states(memory: Tensor, where: Tensor, values: int) -> Tensor:
    """The states in the lines `where` of a memory, [G, heads, keys, values]."""
    return memory[where].transpose(2, 3).flatten(3)[..., :values]


def write_states(memory: Tensor, where: Tensor, states: Tensor) -> None:
    """Write states [G, heads, keys, values] to the lines `where` of a memory."""
    blocks, width = memory.shape[2], memory.shape[4]
    padded = torch.nn.functional.pad(states, (0, blocks * width - states.shape[3]))
    memory[where] = padded.unflatten(3, (blocks, width)).transpose(2, 3)


@dataclass(slots=True)
class Course:
    """The order of the rows of one pass, for G groups; rows that are run again are numbered before those of the pass.

    A group first runs `again` rows of the pass before, then `known` rows, and saves the state; then its `nodes`.
    """

    source: Tensor  # int64 [G]: where its state lies
    into: Tensor  # int64 [G]: where the state after the known rows goes
    save_line: Tensor  # int64 [G]: where a copy of the state goes, -1 for nowhere
    save_after: Tensor  # int64 [G]: after how many rows, those run again included
    again: Tensor  # int64 [G]
    again_first: Tensor  # int64 [G]: the first row that is run again
    first: Tensor  # int64 [G]: the first row of this pass
    known: Tensor  # int64 [G]
    nodes: Tensor  # int64 [G]
    parents: Tensor  # int64 [rows of this pass]: of a node, its parent's number, -1: the last known row
    front: int  # rows run again, padding included: how many stand before the rows of this pass
    steps: Any = None  # the CPU kernel's plan of it, made once a pass


def convolve(x: Tensor, taps: Tensor, weight: Tensor, bias: Tensor | None, activate: bool) -> Tensor:
    """A causal convolution of each channel by itself, over rows that follow each other as `taps` says: [E, C].

    x is [B, C]; taps int64 [T, E] names for every row what precedes it, itself first; weight is [T, C], its last line
    for the row itself. With `activate` silu comes last.
    """
    if face(x.device) == "numba":
        from augury.kernels.recurrence_numba import convolve as on_cpu

        return on_cpu(x, taps, weight, bias, activate)
    size = len(taps)
    out = x[taps[size - 1]] * weight[0]
    for j in range(1, size):
        out = out + x[taps[size - 1 - j]] * weight[j]
    out = out if bias is None else out + bias
    return torch.nn.functional.silu(out) if activate else out


def scan(
    memory: Tensor, course: Course, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor | None
) -> Tensor:
    """The recurrence over a pass: the outputs of its own rows, [R, heads, V]; `memory` (make_memory) is written to.

    query and key are [E, key heads, K], value [E, heads, V], decay and rate [E, heads], all float32.
    """
    if face(memory.device) == "numba":
        from augury.kernels.recurrence_numba import scan as on_cpu

        return on_cpu(memory, course, query, key, value, decay, rate)
    return _with_torch(memory, course, query, key, value, decay, rate)


def _with_torch(
    memory: Tensor, course: Course, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor | None
) -> Tensor:
    """The reference: all groups step by step."""
    share = memory.shape[1] // key.shape[1]
    query, key = query.repeat_interleave(share, 1), key.repeat_interleave(share, 1)
    out = value.new_zeros(len(value) - course.front + 1, *value.shape[1:])  # the last line takes what is not needed

    def step(state: Tensor, row: Tensor, wanted: Tensor) -> Tensor:
        state = state * decay[row][..., None, None]
        write = value[row]
        if rate is not None:
            write = (write - (state * key[row][..., None]).sum(2)) * rate[row][..., None]
        state = state + key[row][..., None] * write[:, :, None]
        out[torch.where(wanted, row - course.front, len(out) - 1)] = (state * query[row][..., None]).sum(2)
        return state

    last = len(value) - 1
    state, rows = read_states(memory, course.source, value.shape[2]), course.again + course.known
    for t in range(int(rows.max())):
        fresh = t >= course.again
        row = torch.where(fresh, course.first - course.again, course.again_first) + t
        runs = t < rows
        after = step(state, row.clamp(max=last), runs & fresh)
        state = torch.where(runs[:, None, None, None], after, state)
        saved = runs & (course.save_after == t + 1) & (course.save_line >= 0)
        write_states(memory, course.save_line[saved], state[saved])
    write_states(memory, course.into, state)
    states = [state]
    for i in range(int(course.nodes.max())):
        row = (course.first + course.known + i).clamp(max=last)
        above = course.parents[(row - course.front).clamp(min=0)] + 1
        before = torch.stack(states, 1)[torch.arange(len(above), device=above.device), above.clamp(max=i)]
        states.append(step(before, row, i < course.nodes))
    return out[:-1]
