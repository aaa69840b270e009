"""What the host reads of a pass: a line for each group, as the device wrote it, with names for its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DRAFTED = 3  # columns at the end of a line, where the pass has drafted


class GroupReport(NamedTuple):
    """What a pass decided for one group, and the draft that it left, if it drafts by itself."""

    accepted: int
    emitted: list[int]
    pending: int = 0  # nodes of the draft that was judged: where passes overlap, the device alone knows them
    nodes: int = 0  # of the next draft
    depth: int = 0
    tokens: Sequence[int] = ()  # of the next draft, and their parents, where grammars wait to read them
    parents: Sequence[int] = ()


def read(lines: list[list[int]], drafted: bool, width: int) -> list[GroupReport]:
    """Lines as Runner.decide makes them; `width` is that of drafts that are written out, 0 where none is."""
    if not drafted:
        return [GroupReport(line[0], line[2 : 2 + line[1]]) for line in lines]
    told = []
    for line in lines:
        pending, nodes, depth = line[-DRAFTED:]
        draft = line[-DRAFTED - 2 * width : -DRAFTED]
        told.append(GroupReport(line[0], line[2 : 2 + line[1]], pending, nodes, depth, draft[:width], draft[width:]))
    return told
