"""The interface between the engine and a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from augury.methods.spec import MAX_NODES
from augury.model.target import Target
from augury.observe.stats import Parts
from augury.verify.sampling import Outcome, SlotSampling
from augury.verify.tree import Draft

if TYPE_CHECKING:
    from augury.drafters.chain import ChainWriter
    from augury.drafters.saver import Saver


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter wants from the target besides tokens."""

    features: tuple[int, ...] = ()  # layer ids whose residual streams it reads; id j is the stream after j layers


@dataclass(frozen=True, slots=True)
class DrafterSetup:
    """The engine a drafter is built for."""

    target: Target
    slots: int  # the padding slot included
    max_model_len: int
    dtype: str  # as the user wrote it; the drafter's weights follow the target's
    directory: Path  # the target's files
    dummy: bool = False  # weights are made up, not loaded: load_format="dummy"


@dataclass(slots=True)
class DraftInput:
    """The drafter's input after a pass, one line per group: how long each text is, and how much each may draft.

    The text of slot s is history[s, :lengths[g]]. A group that drew nothing (unfinished prompt, padding) has budget 0;
    a drafter with a cache of its own still reads what is new, so that its first draft need not wait.
    """

    slots: Tensor  # int64 [G]
    lengths: Tensor  # int64 [G]: tokens known now, those just emitted included
    budget: Tensor  # int64 [G]: nodes that may be drafted
    history: Tensor  # int64 [S, width]
    sampling: SlotSampling
    block_tables: Tensor  # int64 [S, blocks]: where cache rows lie, a drafter's own as well as the target's
    block_size: int
    most_rows: int  # the host's bound on new tokens over all groups
    span: int  # no cache row at or past this is in use, drafts included; rounded up so that it takes few values
    row_begin: Tensor  # int64 [G]: each group's first row of the pass
    start: Tensor  # int64 [G]: cache rows before this pass
    num_new_tokens: (
        Tensor  # int64 [G]: known tokens it ran; group g's rows are its known tokens, then its draft's nodes
    )
    nodes: Tensor  # int64 [G]: draft nodes it ran
    path: Tensor  # int64 [G, N]: of those the accepted ones, from the root down, -1 past the end
    chunked: bool = False  # the pass read prompt chunks: a group may have many new tokens
    features: tuple[Tensor, ...] = ()  # [R, hidden] for every row of the pass, as `needs.features` asked
    most_nodes: int = MAX_NODES  # the host's bound on every budget; 0: the drafter only reads


class UnreadStore(Protocol):
    """Where a drafter puts aside what it does not read now; see engine/backlog.py."""

    def full(self, inputs: DraftInput) -> bool:
        """Whether a request of a pass has as much put aside as it may."""
        ...

    def put_aside(self, inputs: DraftInput) -> None:
        """Keep the features of the known tokens of a pass."""
        ...

    def hand_over(self, inputs: DraftInput, drafter: Drafter) -> DraftInput:
        """The pass with what its requests have put aside before it, as if all had been one pass."""
        ...


class PassCosts(Protocol):
    """What passes cost by their rows; see engine/cost.py."""

    @property
    def shortest(self) -> float:
        """Seconds of a pass of one row."""
        ...

    def with_more(self, rows: int, most: int) -> list[float]:
        """Passes of `rows` rows and 0 .. most more, in passes of `rows` rows."""
        ...


class Drafter:
    """Proposes draft tokens; drafts decide how fast a text is generated, never what it is.

    A drafter must have `name` and `propose`. The rest has defaults for a drafter that keeps nothing: override what
    yours needs.
    """

    name: str = ""
    needs = Needs()
    branching = False  # whether a node may have more than one child
    keeps_drafts = False  # its accepted drafts are in its cache already, and it does not read them again
    reads_late = False  # whether it may leave reading for later, though it is on the host
    on_host = True  # whether it looks at tokens outside the device; otherwise it is captured with the target's pass
    chain: ChainWriter | None = None  # what writes its chains, if that can tell how confident the drafter is
    unread: UnreadStore | None = None  # where it puts aside by itself what it reads later; otherwise the engine does
    looks_up = False  # it reads only slots, lengths, budgets and texts, on the host, and catches up on missed passes

    @property
    def network(self) -> object | None:
        """Its network as loaded from its checkpoint; None: it has none."""
        return None

    def propose(self, inputs: DraftInput) -> Draft:
        """Draft for every group of the coming step, within its budget."""
        raise NotImplementedError

    def observe(self, outcome: Outcome) -> None:
        """Learn how the last drafts fared, one group each, in the order of the slots they were proposed for."""

    def adapt(self, costs: PassCosts, unread: UnreadStore | None, ends_early: bool) -> None:
        """Hear that the engine chooses how much is drafted: what passes cost, where reading may wait if it may, and
        whether a drafter among others may end its drafts early."""

    def draft_whole(self) -> None:
        """Stop ending drafts early."""
        if self.chain is not None:
            self.chain.confidence = None

    def parts(self, slot: int) -> Parts:
        """Which of several drafters made the draft pending in a slot: names and nodes, in the order of the chain."""
        return ()

    def discard(self, slot: int, length: int) -> None:
        """Note that its draft for a slot, after `length` tokens of text, is replaced by another's."""

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Note that a request takes a slot; its first `cached` tokens were found in the prefix cache. `request` names
        it, and only it, however often it is seated; its text may help only other requests of its own tenant."""

    def reset(self, slot: int) -> None:
        """Forget a slot: its request has left."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a cache of its own takes for one token; it has the same blocks as the target's."""
        return 0

    def allocate(self, rows: int, block_size: int) -> None:
        """Allocate that cache, once the number of blocks is known."""

    @property
    def stores(self) -> list[Tensor]:
        """The tensors of that cache: each has, in order, a line for every cache row, or one for every block."""
        return []

    def warm_up(self, device: torch.device) -> None:
        """Compile what is not part of the target's pass, before any request comes."""

    @property
    def saver(self) -> Saver | None:
        """The part that writes something at the end of every request, if it has one."""
        return None

    def close(self) -> None:
        """Save what is to outlive the engine."""
