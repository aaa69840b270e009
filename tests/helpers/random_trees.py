"""A drafter of random trees."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.drafters.text import TextDrafter
from augury.verify.tree import Draft


class RandomTrees(TextDrafter):
    """Drafts random trees, or chains, some of whose branches are right: the worst case for what drafts leave behind."""

    name = "random"

    def __init__(
        self, nodes: int, truth: dict[int, list[int]], seed: int = 0, vocab: int = 256, branching: bool = True
    ) -> None:
        self.nodes, self.truth, self.vocab, self.branching = nodes, truth, vocab, branching
        self.random = torch.Generator().manual_seed(seed)

    def _pick(self, high: int) -> int:
        return int(torch.randint(high, (1,), generator=self.random))

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        draft = Draft.empty(len(slots), self.nodes)
        for g, (slot, length, most) in enumerate(zip(slots.tolist(), lengths.tolist(), budget.tolist(), strict=True)):
            draft.count[g] = count = self._pick(most + 1)
            known = history[slot, :length].tolist()
            for i in range(count):
                parent = draft.parents[g, i] = self._pick(i + 1) - 1 if self.branching else i - 1
                path, node = [], int(parent)
                while node >= 0:
                    path.append(int(draft.tokens[g, node]))
                    node = int(draft.parents[g, node])
                right = next((t for t in self.truth.values() if t[: length + len(path)] == known + path[::-1]), None)
                good = right is not None and len(right) > length + len(path) and self._pick(4) > 0
                draft.tokens[g, i] = right[length + len(path)] if good else self._pick(self.vocab)  # type: ignore[index]
        return Draft(*(t.to(slots.device) for t in (draft.tokens, draft.parents, draft.count)))
