"""MLP speculators: each drafted token is fed back with a small state, which begins as the target's hidden state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import Path, parents_of
from augury.drafters.base import DrafterSetup, DraftInput
from augury.drafters.checkpoint import find_drafter
from augury.drafters.features import last_features
from augury.drafters.medusa import likeliest, renumbered
from augury.drafters.rows import most_steps
from augury.drafters.stateless import StatelessDrafter
from augury.model.errors import ModelError
from augury.model.heads.mlp import load_speculator
from augury.model.heads.mlp_parts import RecurrentSpeculator, State
from augury.model.load import choose_head_dtype
from augury.verify.tree import Draft, chain_parents


class MLPSpeculatorDrafter(StatelessDrafter):
    """Starts from the hidden state that the newest token was drawn from and that token; keeps nothing between steps."""

    name = "mlp_speculator"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Load the weights of as many steps as the chain or the tree is deep."""
        super().__init__(config, setup)
        target, paths = setup.target, self.paths
        dtype = choose_head_dtype(setup.dtype, target)
        self.head = load_speculator(find_drafter(config, setup.dummy), target, dtype, self.depth, setup.dummy)
        self._tree: WrittenTree | BeamTree | None = None
        if paths:
            self._tree = WrittenTree(paths, target.vocab_size, target.device)
        elif config.tree:
            self._tree = BeamTree(self.nodes, min(config.tree.top_k, target.vocab_size), self.depth)

    @property
    def network(self) -> object | None:
        """See Drafter.network."""
        return self.head

    def propose(self, inputs: DraftInput) -> Draft:
        """Draft from the last hidden state and the newest token of every group that may."""
        budget = self.affordable(inputs)
        if (steps := most_steps(inputs, budget, self.nodes)) == 0:
            return Draft.empty(len(budget), self.nodes, budget.device)
        state = self.head.begin(*last_features(inputs))
        newest = inputs.history[inputs.slots, (inputs.lengths - 1).clamp(min=0)]
        if self._tree is None:
            return self._chain(state, newest, budget, steps)
        tokens, parents = self._tree.grow(self.head, state, newest)
        count = budget.clamp(max=tokens.shape[1])
        spare = (0, self.nodes - tokens.shape[1])
        return Draft(pad(tokens, spare), pad(parents, spare, value=-1), count)

    def _chain(self, state: State, newest: Tensor, budget: Tensor, steps: int) -> Draft:
        tokens = torch.zeros(len(budget), self.nodes, dtype=torch.int64, device=newest.device)
        for i in range(steps):
            logits, state = self.head.step(i, state, newest)
            newest = tokens[:, i] = logits.argmax(1)
        return Draft(tokens, chain_parents(len(budget), self.nodes, tokens.device), budget, branching=False)


def picked(state: State, groups: int, place: Tensor) -> State:
    """Select rows `place` [groups, n] of each group from a state with rows [groups * W]; it then has [groups * n]."""
    width = len(state[0]) // groups
    begin = torch.arange(groups, device=place.device)[:, None] * width
    rows = (begin + place).flatten()
    return tuple(part[rows] for part in state)


class WrittenTree:
    """A tree whose shape the user wrote: path (i, j) is the i-th best first token, then the j-th best after it."""

    def __init__(self, paths: list[Path], vocabulary: int, device: torch.device) -> None:
        self.parents = torch.tensor(parents_of(paths), device=device)
        most = 1 + max(max(path) for path in paths)
        if most > vocabulary:
            raise ModelError(f"speculative_token_tree asks for {most} best tokens; there are {vocabulary}.")
        self.levels: list[tuple[int, Tensor, Tensor]] = []  # children per node, places of those kept, which continue
        grown: list[Path] = [()]
        found: list[Path] = []
        for depth in range(1, max(map(len, paths)) + 1):
            level = [path for path in paths if len(path) == depth]
            width = 1 + max(path[-1] for path in level)
            places = [grown.index(path[:-1]) * width + path[-1] for path in level]
            inner = {path[:-1] for path in paths if len(path) == depth + 1}
            onward = [i for i, path in enumerate(level) if path in inner]
            ahead = torch.tensor(onward, dtype=torch.int64, device=device)
            self.levels.append((width, torch.tensor(places, device=device), ahead))
            grown = [level[i] for i in onward]
            found += level
        self.order = torch.tensor([found.index(path) for path in paths], device=device)

    def grow(self, head: RecurrentSpeculator, state: State, newest: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and parents, both [G, N]."""
        groups, found, last = len(newest), [], newest
        for i, (width, places, onward) in enumerate(self.levels):
            logits, state = head.step(i, state, last)
            tokens = logits.topk(width).indices.view(groups, -1)[:, places]
            found.append(tokens)
            if i + 1 < len(self.levels):
                state = picked(state, groups, (places[onward] // width).expand(groups, -1))
                last = tokens[:, onward].flatten()
        everything = torch.cat(found, dim=1)[:, self.order]
        return everything, self.parents.expand_as(everything)


class BeamTree:
    """The likeliest paths among those that grow from the `top_k` best nodes of every depth, as in EAGLE-2.

    A child is never likelier than its parent, so in the order of probability a parent comes before its children, and
    the first n nodes are the best n.
    """

    def __init__(self, nodes: int, top_k: int, depth: int) -> None:
        self.top_k, self.depth = top_k, depth
        self.nodes = min(nodes, top_k + (depth - 1) * top_k * top_k)

    def grow(self, head: RecurrentSpeculator, state: State, newest: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and parents, both [G, N]."""
        groups, k, device = len(newest), self.top_k, newest.device
        chances, tokens, parents = [], [], []
        above, numbers = torch.zeros(groups, 1, dtype=torch.float32, device=device), newest.new_full((groups, 1), -1)
        last, count = newest, 0
        for i in range(self.depth):
            logits, state = head.step(i, state, last)
            values, token = likeliest(logits, k)
            chance = (above[:, :, None] + values.view(groups, -1, k)).flatten(1)
            chances.append(chance)
            tokens.append(token.view(groups, -1))
            parents.append(numbers.repeat_interleave(k, dim=1))
            if i + 1 == self.depth:
                break
            beam = chance.sort(stable=True, dim=1, descending=True).indices[:, :k]
            above, last, numbers = chance.gather(1, beam), tokens[-1].gather(1, beam).flatten(), beam + count
            state = picked(state, groups, beam // k)
            count += chance.shape[1]
        order = torch.cat(chances, 1).sort(stable=True, dim=1, descending=True).indices[:, : self.nodes]
        whole = torch.cat(parents, 1)
        return torch.cat(tokens, 1).gather(1, order), renumbered(whole.gather(1, order), order, whole.shape[1])
