"""What the host reads of a pass: one line per group, as the device wrote it, with names for its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DRAFTED = 3  # columns at the end of a line, if the pass has drafted


class GroupReport(NamedTuple):
    """What a pass decided for one group, and its next draft, if the drafter is part of the pass."""

    accepted: int
    emitted: list[int]
    pending: int = 0  # nodes of the draft that was verified: where passes overlap, only the device knows how many
    nodes: int = 0  # of the next draft
    depth: int = 0
    tokens: Sequence[int] = ()  # of the next draft, and their parents, where grammars wait to read them
    parents: Sequence[int] = ()


def read(lines: list[list[int]], drafted: bool, width: int) -> list[GroupReport]:
    """Parse lines as Runner.decide makes them; `width` is that of the drafts in them, 0 if there are none."""
    if not drafted:
        return [GroupReport(line[0], line[2 : 2 + line[1]]) for line in lines]
    told = []
    for line in lines:
        pending, nodes, depth = line[-DRAFTED:]
        draft = line[-DRAFTED - 2 * width : -DRAFTED]
        told.append(GroupReport(line[0], line[2 : 2 + line[1]], pending, nodes, depth, draft[:width], draft[width:]))
    return told
