"""Drafting with several MTP layers: layer i drafts token i.

Layer 0 pairs a token with the target's features of the token before it, layer i with layer i - 1's output for the token
before it. So layer i's row of a token depends on no later token, and it lies where the token's own row lies: a block
that is found again in the prefix cache holds valid rows of every layer. What a layer's first new row needs of the layer
above is kept: for every slot the states of its last known token, for every block those of its last one.

Draft tokens are new to every layer: layer i reads this pass's known tokens and, after them, the draft tokens before
its own (of a tree, all nodes above its level).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from augury.drafters.chain import ChainWriter
from augury.drafters.grow import TreeShape
from augury.drafters.recurrent import SHIFT, HeadInput
from augury.drafters.rows import UnreadRows, fresh_rows, most_steps, physical
from augury.model.heads.mtp import MtpHead
from augury.verify.tree import Draft


@dataclass(slots=True)
class Kept:
    """States of every layer but the last, for the next pass."""

    last: Tensor  # [layers - 1, slots, H]: of each slot's last known token
    ends: Tensor  # [layers - 1, blocks, H]: of each block's last token

    @classmethod
    def allocate(cls, head: MtpHead, slots: int, blocks: int) -> Kept:
        """Allocate what every layer keeps."""
        device, size = head.target.device, head.target.hidden_size
        last, ends = (
            torch.zeros(head.guesses - 1, n, size, dtype=head.cache_dtype, device=device) for n in (slots, blocks)
        )
        return cls(last, ends)

    def read(self, new: HeadInput) -> Tensor:
        """For every layer but the last, the state before each group's first new row, [layers - 1, G, H]."""
        inputs = new.inputs
        block = physical(inputs, inputs.slots, (new.begin - 1).clamp(min=0)) // inputs.block_size
        return torch.where((new.carried > 0)[:, None], self.ends[:, block], self.last[:, inputs.slots])


@dataclass(slots=True)
class Nodes:
    """The draft so far, M nodes per group; groups that are not `alive` have none."""

    tokens: Tensor  # int64 [G, M]
    parents: Tensor  # int64 [G, M]: -1 is the last known token
    depths: Tensor  # int64 [M]: 1 is a child of the last known token
    alive: Tensor  # [G]
    bits: Tensor | None = None  # int64 [G, M]: ancestors, itself included; None: a chain, attending to all before it

    @classmethod
    def chain(cls, tokens: Tensor, alive: Tensor) -> Nodes:
        """Each token's parent is the one before it."""
        order = torch.arange(tokens.shape[1], device=tokens.device)
        return cls(tokens, (order - 1).expand_as(tokens), order + 1, alive)

    def grow(self, tokens: Tensor, bits: Tensor, depth: int) -> Nodes:
        """A copy with one more level, [G, W]; `bits` tell each node's parent."""
        root = bits.new_zeros(len(bits), 1)  # which has no bit set
        known = root if self.bits is None else torch.cat((root, self.bits), 1)
        own = 1 << torch.arange(self.tokens.shape[1], self.tokens.shape[1] + tokens.shape[1], device=bits.device)
        parents = ((bits ^ own)[:, :, None] == known[:, None]).int().argmax(2) - 1
        return Nodes(
            torch.cat((self.tokens, tokens), 1),
            torch.cat((self.parents, parents), 1),
            torch.cat((self.depths, torch.full_like(own, depth))),
            self.alive,
            bits if self.bits is None else torch.cat((self.bits, bits), 1),
        )


class Layers:
    """The layers of one pass, run one after the other."""

    def __init__(self, head: MtpHead, kept: Kept, new: HeadInput) -> None:
        """Run layer 0 over what is new."""
        self.head, self.new, self._kept = head, new, kept
        self._step = 0
        self._from_before = kept.read(new)  # before the layers overwrite it
        self._states, self._begins = self._run(new.fresh, new.hidden, 0)
        self.first = self._states[new.fresh.rows.wanted]  # [G, H]: layer 0's states of the last known tokens

    def deeper(self, nodes: Nodes) -> Tensor:
        """Run the next layer over what is new and what is drafted; returns its states of all nodes, [G, M, H]."""
        self._step += 1
        new, masks = self.new, nodes.tokens.shape[1]
        fresh = fresh_rows(new.inputs, new.begin, new.count, SHIFT + self._step, masks)
        known = fresh.number < new.count[fresh.group]
        node = (fresh.number - new.count[fresh.group]).clamp(min=0, max=max(0, masks - 1))
        place, above = (
            new.begin[fresh.group] + fresh.number,
            fresh.number - 1,
        )  # in the text, and the row it continues from
        if masks:
            end = new.begin + new.count
            place = torch.where(known, place, end[fresh.group] - 1 + nodes.depths[node])
            above = torch.where(known, above, new.count[fresh.group] + nodes.parents[fresh.group, node])
            self._show(fresh, nodes, known, node, place)
        hidden = self._before(fresh, above)
        begun = place >= SHIFT + self._step  # a layer's first tokens have nothing to continue from, and are never read
        hidden = torch.where(begun[:, None], hidden, 0.0)
        self._states, self._begins = self._run(fresh, hidden, masks)
        return self._states[fresh.rows.wanted].view(len(new.count), 1 + masks, -1)[:, 1:]

    def _show(self, fresh: UnreadRows, nodes: Nodes, known: Tensor, node: Tensor, place: Tensor) -> None:
        """Turn the rows after the known ones into draft nodes."""
        rows, group, shift = fresh.rows, fresh.group, SHIFT + self._step
        alive = known | nodes.alive[group]
        rows.tokens = torch.where(known, rows.tokens, torch.where(alive, nodes.tokens[group, node], 0))
        rows.positions = torch.where(alive, (place - shift).clamp(min=0), 0)
        rows.write = torch.where(alive, rows.write, 0)
        if nodes.bits is not None:
            end = self.new.begin + self.new.count
            order = torch.arange(len(nodes.depths), device=end.device)
            begun = end[:, None] - 1 + nodes.depths >= shift
            seen = nodes.bits & torch.where(begun, 1 << order, 0).sum(1, keepdim=True)
            rows.context = torch.where(known, rows.context, end[group])
            rows.base = torch.where(known, rows.base, end[group])
            rows.ancestors = torch.where(known | ~alive, rows.ancestors, seen[group, node])
        rows.context = torch.where(alive, rows.context, 0)

    def _before(self, fresh: UnreadRows, above: Tensor) -> Tensor:
        """The output of the layer above for the row that each row continues from."""
        here = self._states[(self._begins[fresh.group] + above).clamp(min=0, max=len(self._states) - 1)]
        return torch.where((above < 0)[:, None], self._from_before[self._step - 1][fresh.group].to(here.dtype), here)

    def _run(self, fresh: UnreadRows, hidden: Tensor, masks: int) -> tuple[Tensor, Tensor]:
        """Run a layer: its states of all rows, and where each group's rows begin; keeps what the next pass needs."""
        new, step = self.new, self._step
        states = self.head.states(fresh.rows, hidden, step)
        sizes = torch.where(new.count > 0, new.count + masks, 0)
        if step + 1 < self.head.guesses:
            inputs, group = new.inputs, fresh.group
            nobody = len(inputs.block_tables) - 1
            final = fresh.rows.wanted.view(len(sizes), 1 + masks)[:, 0]
            kept = states.to(self._kept.last.dtype)
            self._kept.last[step][torch.where(new.count > 0, inputs.slots, nobody)] = kept[final]
            place = new.begin[group] + fresh.number
            known = fresh.live.bool() & (fresh.number < new.count[group])
            ends = known & ((place + 1) % inputs.block_size == 0)
            self._kept.ends[step][torch.where(ends, fresh.rows.write // inputs.block_size, 0)] = (
                kept  # block 0 is the null block
            )
        return states, sizes.cumsum(0) - sizes


def draft_chain(layers: Layers, chain: ChainWriter, most: int) -> Draft:
    """Draft one token per layer. Every layer reads what is known, even if no request may draft that far."""
    inputs, budget, project = layers.new.inputs, layers.new.budget, layers.head.target.project
    draft, steps = chain.begin(inputs, budget), most_steps(inputs, budget, most)
    states = layers.first
    for i in range(layers.head.guesses):
        if i < steps:
            chain.write(draft, inputs, project(states), i)
        if i + 1 < layers.head.guesses:
            shown = draft.tokens[:, : i + 1 if i + 1 < steps else 0]
            found = layers.deeper(Nodes.chain(shown, budget > i + 1))
            states = found[:, -1] if i + 1 < steps else states
    return chain.finish(draft)


def draft_tree(layers: Layers, tree: TreeShape) -> Draft:
    """Draft a tree, one level per layer."""
    budget, project = layers.new.budget, layers.head.target.project
    none = budget.new_zeros(len(budget), 0)
    nodes = Nodes(none, none, none[0], budget > 0)

    def run(tokens: Tensor, states: Tensor | None, bits: Tensor, depth: int, number: int) -> tuple[Tensor, Tensor]:
        nonlocal nodes
        nodes = nodes.grow(tokens, bits, depth)
        found = layers.deeper(nodes)[:, number:]
        return project(found.flatten(0, 1)).view(*tokens.shape, -1), found

    return tree.grow(project(layers.first), layers.first, run, budget, layers.head.targets)
