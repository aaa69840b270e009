"""Passes of a small engine for tests of step kernels: slots in any state, and the table of segments for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st

from augury.engine.rows import StepShape
from augury.engine.state import SlotState
from augury.kernels.slot_tables import SlotTables

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FACES = ("triton",) if DEVICE.type == "cuda" else ("triton", "numba")  # which stand beside the torch code here
SLOTS, LONGEST, BLOCK_SIZE, VOCABULARY = 4, 60, 4, 50
TOKENS = 4  # drafts and draws are so few tokens that they often agree


class Pass(NamedTuple):
    """What the engine knows when a pass begins."""

    state: SlotState
    table: torch.Tensor  # int64 [8, G]: see engine/rows.py's Segments
    shape: StepShape


def quick(examples: int) -> settings:
    """So many examples under the interpreter, more on a GPU; shrinking would take minutes."""
    return settings(
        max_examples=150 if DEVICE.type == "cuda" else examples,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
    )


def with_face(face: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call with the kernels of one face."""
    with patch("augury.kernels.faces.asked", return_value=face):
        return call(*args, **named)


def slot_tables(state: SlotState) -> SlotTables:
    """What the walk takes of the slots."""
    sampling = state.sampling
    return SlotTables(
        state.history, state.length, state.alive, state.limit, state.end_tokens, sampling.counts, sampling.seed
    )


@st.composite
def states(draw: st.DrawFn, branching: bool) -> SlotState:
    """Slots full of tokens, with a pending draft each; some drafts hold placeholders."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    nodes = draw(st.sampled_from([1, 3, 5, 8, 33]))
    state = SlotState.allocate(SLOTS, LONGEST, nodes, BLOCK_SIZE, VOCABULARY, torch.device("cpu"))
    state.history[:SLOTS] = torch.randint(0, VOCABULARY, state.history[:SLOTS].shape)
    blocks = state.block_tables.shape[1]
    state.block_tables[:SLOTS] = torch.randperm(SLOTS * blocks).view(SLOTS, blocks) + 1
    state.draft.tokens[:] = torch.randint(-draw(st.integers(0, 1)), TOKENS, state.draft.tokens.shape)
    if branching:
        for i in range(nodes):
            state.draft.parents[:, i] = torch.randint(-1, i, (SLOTS + 1,)) if i else -1
    state.sampling.seed[:SLOTS] = torch.randint(0, 2**40, (SLOTS,))
    state.end_tokens[:SLOTS, :2] = torch.randint(-1, 8 * TOKENS, (SLOTS, 2))
    state.alive[:SLOTS] = 1
    if draw(st.booleans()):
        state.make_tables()
    return state


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """Prompt chunks, whole or not, and drafts, in any mixture; with padding groups, rows and lines after them."""
    branching = draw(st.booleans())
    state = draw(states(branching))
    nodes, columns = state.draft.tokens.shape[1], []
    groups = draw(st.sampled_from([1, 2, 4]))
    for slot in draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, groups))]:
        start, room, allowed = draw(st.integers(0, 20)), draw(st.integers(1, 40)), draw(st.integers(0, nodes))
        if draw(st.booleans()):
            columns.append((slot, start, 1, draw(st.integers(0, nodes)), 1, 1, room, allowed))
        else:
            known, active = draw(st.integers(1, 20)), draw(st.integers(0, 1))
            scored = known if draw(st.booleans()) else active  # all of them for prompt_logprobs
            columns.append((slot, start, known, 0, scored, active, room, allowed))
        state.limit[slot] = start + columns[-1][2] + draw(st.integers(0, 9))  # requests near their ends
    table = torch.zeros(8, groups, dtype=torch.int64)
    table[0] = state.padding_slot
    table[:, : len(columns)] = torch.tensor(columns).T
    rows = int((table[2] + table[3]).sum()) + draw(st.integers(0, 3))
    logits_rows = max(1, int((table[4] + table[3] * table[5]).sum()) + draw(st.integers(0, 2)))
    return Pass(_moved(state), table.to(DEVICE), StepShape(groups, rows, logits_rows, 128, True, True, True, branching))


def _moved(state: SlotState) -> SlotState:
    """The same slots on the device under test."""
    for part in (state, state.draft, state.sampling):
        for name in part.__dataclass_fields__:
            if isinstance(value := getattr(part, name), torch.Tensor):
                setattr(part, name, value.to(DEVICE))
    return state
