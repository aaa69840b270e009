"""The recurrent layers' side of one forward pass: which rows follow which, worked out once for all layers.

All rows that take part are numbered in one list: every group's last rows that its convolutions read, then the nodes of
the previous pass that are run again, then the rows of this pass. `before` names each one's predecessor in the text, so
the convolution of a node in a tree walks up its own branch and from there into the known text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from augury.kernels.recurrence import Course, convolve, scan
from augury.kernels.rows import Rows
from augury.model.states import NEVER, States


@dataclass(slots=True)
class Groups:
    """The slots of a pass, one entry each, int64 [G]; padding rows belong to group G."""

    of_row: Tensor  # int64 [R]
    slots: Tensor
    first: Tensor  # its first row
    start: Tensor  # tokens before this pass
    known: Tensor
    nodes: Tensor
    is_node: Tensor  # bool [R]
    number: Tensor  # int64 [R]: a row's index within its group


def find_groups(rows: Rows, padding_slot: int) -> Groups:
    """Find the groups in packed rows: in each, known rows come first, then nodes in their order."""
    live, size = rows.context > 0, len(rows.context)
    index = torch.arange(size, device=live.device)
    earlier = (index - 1).clamp(min=0)
    begins = live & ((index == 0) | ~live[earlier] | (rows.slots != rows.slots[earlier]))
    count = max(1, int(begins.sum())) if live.device.type == "cpu" else rows.groups or size
    of_row = torch.where(live, begins.cumsum(0) - 1, count)
    is_node = live & (rows.ancestors != 0)

    def counted(which: Tensor) -> Tensor:
        return index.new_zeros(count + 1).index_add(0, of_row, which.to(index.dtype))

    known, nodes = counted(live & ~is_node), counted(is_node)
    first = index.new_full((count + 1,), size).scatter_reduce(0, of_row, index, "amin")
    place = first.clamp(max=size - 1)
    used = known + nodes > 0
    slots = torch.where(used, rows.slots[place], padding_slot)
    start = torch.where(used, rows.context[place] - (~is_node[place]).to(index.dtype), 0)
    number = index - first[of_row]
    return Groups(of_row, slots[:-1], place[:-1], start[:-1], known[:-1], nodes[:-1], is_node, number)


class StatePass:
    """What a recurrent layer needs of a forward pass: the convolution and the recurrence over its rows."""

    def __init__(self, states: States, rows: Rows) -> None:
        """Choose each group's lines, and work out which rows follow which."""
        self._states, self._groups = states, find_groups(rows, states.slots - 1)
        groups, device = self._groups, rows.tokens.device
        again, into, source = self._choose_lines()
        self._front = int(again.max()) if device.type == "cpu" else states.nodes  # rows a group may run again
        self._again, self._into, self._source = again, into, source
        self._taps = states.shapes[0].taps
        count = len(groups.slots)
        self._logged = count * self._taps  # the first row that is run again
        self._rows = self._logged + count * self._front  # the first row of this pass
        self.parents = _parents(rows, groups, states.nodes)
        before, last = self._order()
        self._tail_rows = self._walk(last, before)
        self._save_line, self._save_after, saved = self._find_saves()
        self._saved_rows = self._walk(saved, before)
        taps = [torch.arange(self._logged, len(before), device=device)]
        for _ in range(self._taps):
            taps.append(before[taps[-1]])
        self.taps = torch.stack(taps)
        number = torch.arange(count, device=device)
        self.course = Course(
            source,
            into,
            self._save_line,
            self._save_after,
            again,
            number * self._front,
            count * self._front + groups.first,
            groups.known,
            groups.nodes,
            self.parents,
            count * self._front,
        )

    def convolve(
        self, layer: int, x: Tensor, gates: Tensor | None, weight: Tensor, bias: Tensor | None, activate: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Convolve rows x [R, C] and those run again; returns both and their gates, stores tails and node inputs."""
        states, shape = self._states, self._states.shapes[layer]
        tail, log, slot_lines = states.tails[layer], states.logs[layer], 2 * states.slots
        # A saved state and the empty one have no nodes after them: nothing of theirs is run again.
        logged = log[torch.where(self._source < slot_lines, self._source, 0), : self._front].flatten(0, 1)
        everything = torch.cat((tail[self._source].flatten(0, 1), logged[:, : shape.channels], x))
        out = convolve(everything, self.taps, weight, bias, activate)
        tail[self._into] = everything[self._tail_rows]
        saves = torch.where(self._save_line >= 0, self._save_line, slot_lines - 1)  # padding's
        tail[saves] = everything[self._saved_rows]
        brought = x if gates is None else torch.cat((x, gates), 1)
        groups = self._groups
        owner = groups.of_row.clamp(max=len(groups.slots) - 1)
        line = torch.where(groups.is_node, self._into[owner], slot_lines - 1)
        log[line, torch.where(groups.is_node, groups.number - groups.known[owner], 0)] = brought
        return out, None if gates is None else torch.cat((logged[:, shape.channels :], gates))

    def scan(self, layer: int, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor | None) -> Tensor:
        """Run the recurrence (kernels/recurrence.py) and return the output of this pass's rows, [R, heads, V]."""
        return scan(self._states.memory[layer], self.course, query, key, value, decay, rate)

    def own(self, rows: Tensor) -> Tensor:
        """The rows of this pass, without those that were run again."""
        return rows[self.course.front :]

    def _choose_lines(self) -> tuple[Tensor, Tensor, Tensor]:
        """How many nodes are run again, the line to write and the line to read; records the prefix of the first."""
        states, slots, start = self._states, self._groups.slots, self._groups.start
        lengths, fresh = states.lengths[slots], start == 0
        usable = torch.where(lengths <= start[:, None], lengths, -1)
        length, turn = usable.max(1)
        again = torch.where(fresh, 0, start - length)
        if start.device.type == "cpu" and bool(((again < 0) | (again > states.nodes) | ((length < 0) & ~fresh)).any()):
            raise RuntimeError("a recurrent state is missing: no line of the slot holds a prefix to continue from")
        other = torch.where(fresh, 0, 1 - turn)
        lengths = torch.where(fresh[:, None], NEVER, lengths)
        states.lengths[slots] = lengths.scatter(1, other[:, None], (start + self._groups.known)[:, None])
        empty = len(states.tails[0]) - 1
        return again, 2 * slots + other, torch.where(fresh, empty, 2 * slots + turn)

    def _order(self) -> tuple[Tensor, Tensor]:
        """Every row's predecessor, and each group's last known row."""
        groups, count = self._groups, len(self._groups.slots)
        device = groups.slots.device
        group = torch.arange(count, device=device)
        tails = torch.arange(self._logged, device=device).view(count, self._taps)
        logged = torch.arange(self._logged, self._rows, device=device).view(count, self._front)
        ending = torch.where(self._again > 0, self._logged + group * self._front + self._again - 1, tails[:, -1])
        before_tails = torch.cat((tails[:, :1], tails[:, :-1]), 1)
        before_logged = torch.cat((tails[:, -1:], logged[:, :-1]), 1) if self._front else logged
        first = self._rows + groups.first
        last = torch.where(groups.known > 0, first + groups.known - 1, ending)
        owner = groups.of_row.clamp(max=count - 1)
        place = torch.arange(len(groups.of_row), device=device)
        before_known = torch.where(groups.number > 0, self._rows + place - 1, ending[owner])
        parent = first[owner] + groups.known[owner] + self.parents
        before_node = torch.where(self.parents >= 0, parent, last[owner])
        before_rows = torch.where(groups.is_node, before_node, before_known)
        before_rows = torch.where(groups.of_row < count, before_rows, 0)
        return torch.cat((before_tails.flatten(), before_logged.flatten(), before_rows)), last

    def _find_saves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which groups pass a prefix to be saved: the line (-1: none), after how many rows, and the last of these."""
        groups, states = self._groups, self._states
        have, at = groups.start - self._again, states.save_at[groups.slots]
        passes = (at > have) & (at <= groups.start + groups.known)
        after = torch.where(passes, at - have, 0)
        group = torch.arange(len(at), device=at.device)
        repeated = self._logged + group * self._front + after - 1
        fresh = self._rows + groups.first + after - self._again - 1
        row = torch.where(after <= self._again, repeated, fresh)
        return torch.where(passes, states.save_line[groups.slots], -1), after, torch.where(passes, row, 0)

    def _walk(self, last: Tensor, before: Tensor) -> Tensor:
        """The last rows, up to `last` int64 [G], that a convolution after it reads, oldest first, [G, taps]."""
        found = [last]
        for _ in range(self._taps - 1):
            found.insert(0, before[found[0]])
        return torch.stack(found, 1)


def _parents(rows: Rows, groups: Groups, nodes: int) -> Tensor:
    """Each node's parent by its number, -1 for a child of the last known row, int64 [R]; -1 for all other rows."""
    if rows.ancestors.device.type == "cpu" and not bool(groups.is_node.any()):
        return torch.full_like(rows.ancestors, -1)
    owner = groups.of_row.clamp(max=len(groups.slots) - 1)
    number = (groups.number - groups.known[owner]).clamp(min=0, max=nodes - 1)
    above = torch.where(groups.is_node, rows.ancestors & ~(1 << number), 0)
    bit = torch.arange(nodes, device=above.device)
    return (((above[:, None] >> bit) & 1) * (bit + 1)).amax(1) - 1
