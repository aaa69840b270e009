"""What the engine knows of each running request, as tensors on the device, one line per slot.

One decode step is a function of these tensors with static shapes, so that on a GPU it can be captured once and
replayed. The host keeps its own records (request.py) for text, stops and blocks, and writes here only when a slot
changes hands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from augury.engine.mask_table import MaskTable
from augury.engine.mirror import Leader, seat_record
from augury.engine.request import Request
from augury.engine.staging import Staging
from augury.verify.sampling import Outcome, SlotSampling
from augury.verify.tree import Draft, chain_parents

END_TOKENS = 8  # a request with more is ended by the host alone, a pass later


@dataclass(slots=True)
class SlotState:
    """Per-slot tensors; the last slot is for padding groups."""

    history: Tensor  # int64 [S, width]: known tokens; the last column takes the writes of padding
    length: Tensor  # int64 [S]: known tokens, as of the last pass launched; only if `tracks`
    alive: Tensor  # int64 [S]: 1 until a request has drawn its last token, as far as the device can tell; likewise
    limit: Tensor  # int64 [S]: tokens at which the request ends
    end_tokens: Tensor  # int64 [S, END_TOKENS]: tokens that end it, as far as they fit; -1 past their end
    block_tables: Tensor  # int64 [S, blocks]
    draft: Draft  # the pending draft of each slot, [S, N]
    sampling: SlotSampling
    adapters: Tensor  # int64 [S]: the LoRA adapter of each, 0 for none
    vocab_size: int
    staging: Staging
    long: Tensor | None = None  # int64 [S]: 1 where the text is past the target's switch_length, if it has one
    tracks: bool = False  # passes are launched before the host has seen the one before: see resume.py
    version: int = 0  # grows when a table moves to other memory: graphs captured before are invalid
    masks: MaskTable | None = None  # grammar masks; None: they come with each pass
    leader: Leader | None = None  # tells other ranks what changes here, if there are any

    @classmethod
    def allocate(
        cls,
        slots: int,
        max_len: int,
        nodes: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        lookahead: int = 0,
    ) -> SlotState:
        """Empty slots; `nodes` is the largest draft ever pending, `lookahead` the cache rows a drafter writes ahead."""
        slots += 1

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(slots, *shape, dtype=torch.int64, device=device)

        return cls(
            history=zeros(max_len + nodes + 2),
            length=zeros(),
            alive=zeros(),
            limit=zeros(),
            end_tokens=zeros(END_TOKENS) - 1,
            block_tables=zeros(-(-(max_len + nodes + 1 + lookahead) // block_size)),
            draft=Draft(zeros(nodes), chain_parents(slots, nodes, device), zeros()),
            sampling=SlotSampling.allocate(slots, device),
            adapters=zeros(),
            vocab_size=vocab_size,
            staging=Staging(device),
        )

    @property
    def padding_slot(self) -> int:
        """The slot that padding groups use."""
        return self.limit.shape[0] - 1

    def seat(self, request: Request) -> None:
        """Write a request to its slot: its tokens, its parameters, its tables."""
        slot = request.slot
        self.history[slot, : request.length] = self._ids(request.tokens)
        self.limit[slot] = request.max_len
        if self.long is not None:
            self.long[slot] = int(request.long)
        self.adapters[slot] = 0 if request.lora is None else request.lora.place
        if self.tracks:
            self._set_end(slot, request)
        params, sampling = request.params, self.sampling
        sampling.temperature[slot] = params.temperature
        sampling.top_k[slot] = params.top_k
        sampling.top_p[slot] = params.top_p
        sampling.min_p[slot] = params.min_p
        sampling.repetition[slot] = params.repetition_penalty
        sampling.presence[slot] = params.presence_penalty
        sampling.frequency[slot] = params.frequency_penalty
        sampling.seed[slot] = request.seed
        sampling.min_length[slot] = request.prompt_len + params.min_tokens if params.min_tokens else 0
        sampling.penalized[slot] = params.penalized
        if params.penalized:
            self._count_tokens(slot, request)
        self._set_bias(slot, request)
        self._set_barred(slot, request)
        if self.masks is not None:
            self.masks.seat(slot, request.grammar)
        if self.leader is not None:
            self.leader.note("seat", seat_record(request))

    def note(self, order: str, *what: Any) -> None:
        """Tell other ranks, if there are any, of a change that is not made by these methods."""
        if self.leader is not None:
            self.leader.note(order, *what)

    def give_blocks(self, requests: list[Request]) -> None:
        """Write the blocks that requests were given since their last pass to the block tables, all in one copy."""
        fresh = [
            (request.slot, place, request.blocks[place])
            for request in requests
            for place in range(request.tabled, len(request.blocks))
        ]
        if fresh:
            self.write_blocks(fresh)
            self.note("blocks", fresh)
            for request in requests:
                request.tabled = len(request.blocks)

    def write_blocks(self, fresh: Sequence[Sequence[int]]) -> None:
        """Write (slot, place in its table, block) to the tables."""
        slots, places, blocks = self._there(np.array(fresh).T.copy()).unbind(0)
        self.block_tables[slots, places] = blocks

    def make_tables(self) -> None:
        """Make the [S, V] tables before a request needs them: one made later would invalidate every captured graph."""
        sampling = self.sampling
        sampling.counts, sampling.in_prompt = self._table(torch.int32), self._table(torch.bool)
        sampling.bias = self._table(torch.float32)

    def make_masks(self) -> None:
        """Make the table of grammar masks, which passes can read after they have begun."""
        slots, nodes = self.draft.tokens.shape
        self.masks = MaskTable.allocate(slots, nodes, self.vocab_size, self.staging, self.history.device)

    def append(self, slots: Tensor, ends: Tensor, outcome: Outcome) -> None:
        """Write what a step emitted after the `ends` known tokens of each slot."""
        column = torch.arange(outcome.emitted.shape[1], device=ends.device)
        real = column < outcome.emitted_count[:, None]
        trash = self.history.shape[1] - 1
        self.history[slots[:, None], torch.where(real, ends[:, None] + column, trash)] = outcome.emitted
        if self.sampling.counts is not None:
            where = (slots[:, None].expand_as(real), outcome.emitted.clamp(min=0))
            self.sampling.counts.index_put_(where, real.to(torch.int32), accumulate=True)

    def note_lengths(self, slots: Tensor, lengths: Tensor, outcome: Outcome) -> None:
        """Keep the length of each text, and whether its request has drawn its last token."""
        said = torch.where(
            torch.arange(outcome.emitted.shape[1], device=slots.device) < outcome.emitted_count[:, None],
            outcome.emitted,
            -2,
        )
        ended = (said[:, :, None] == self.end_tokens[slots][:, None, :]).any(2).any(1)
        alive = ~ended & (lengths < self.limit[slots])
        drew = outcome.emitted_count > 0
        self.length[slots] = lengths
        self.alive[slots] = torch.where(drew, alive.to(torch.int64), self.alive[slots])

    def _ids(self, values: list[int]) -> Tensor:
        return self._there(np.array(values, dtype=np.int64))

    def _there(self, values: np.ndarray) -> Tensor:
        return self.staging.send(values)

    def _table(self, dtype: torch.dtype) -> Tensor:
        self.version += 1
        return torch.zeros(self.limit.shape[0], self.vocab_size, dtype=dtype, device=self.history.device)

    def _count_tokens(self, slot: int, request: Request) -> None:
        sampling = self.sampling
        if sampling.counts is None or sampling.in_prompt is None:
            sampling.counts, sampling.in_prompt = self._table(torch.int32), self._table(torch.bool)
        sampling.counts[slot] = torch.bincount(self._ids(request.output), minlength=self.vocab_size)
        sampling.in_prompt[slot] = False
        sampling.in_prompt[slot, self._ids(request.tokens[: request.prompt_len])] = True

    def _set_bias(self, slot: int, request: Request) -> None:
        sampling = self.sampling
        edits = request.edits
        needed = len(edits.biased) > 0 or edits.allowed is not None
        sampling.biased[slot] = needed
        if not needed:
            return
        if sampling.bias is None:
            sampling.bias = self._table(torch.float32)
        line = sampling.bias[slot]
        line.fill_(0 if edits.allowed is None else float("-inf"))
        if edits.allowed is not None:
            line[self._there(edits.allowed)] = 0
        if len(edits.biased):
            line[self._there(edits.biased)] += self._there(edits.bias)

    def _set_end(self, slot: int, request: Request) -> None:
        """Write what the device needs to tell when a request has drawn its last token."""
        self.length[slot], self.alive[slot] = request.length, 1
        self.end_tokens[slot] = -1
        stops = sorted(request.stop_ids)
        if stops and len(stops) <= END_TOKENS and not request.params.min_tokens:
            self.end_tokens[slot, : len(stops)] = self._ids(stops)

    def _set_barred(self, slot: int, request: Request) -> None:
        sampling = self.sampling
        stops = sorted(request.stop_ids) if request.params.min_tokens else []
        sampling.stops = self._grown(sampling.stops, len(stops))
        sampling.stops[slot] = -1
        sampling.stops[slot, : len(stops)] = self._ids(stops)
        words = request.edits.words
        sampling.bad_words = self._grown(sampling.bad_words, *words.shape)
        sampling.bad_words[slot] = -1
        if words.size:
            sampling.bad_words[slot, : len(words), -words.shape[1] :] = self._there(words)

    def _grown(self, table: Tensor, *need: int) -> Tensor:
        """The table, widened with -1 where a request needs more room than any before it (words are right-aligned)."""
        if all(n <= have for n, have in zip(need, table.shape[1:], strict=True)):
            return table
        # To powers of two: each new size invalidates every captured graph, so there must be few of them.
        sizes = [max(have, 1 << (n - 1).bit_length()) for n, have in zip(need, table.shape[1:], strict=True)]
        extra = [size - have for size, have in zip(sizes, table.shape[1:], strict=True)]
        self.version += 1
        return F.pad(table, (extra[1], 0, 0, extra[0]) if len(extra) == 2 else (0, extra[0]), value=-1)
