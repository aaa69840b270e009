"""A slow oracle for the draw: one line at a time, in float64, from the line's own history; and cases to try it on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from augury.verify import noise
from augury.verify.sampling import Draws, SlotSampling

NEAR = 1e-4  # scores closer than this are a tie that float32 may break either way
NEVER = -math.inf


def sampling(slots: int = 1, **columns: Any) -> SlotSampling:
    """Parameters of some slots; a number stands for all of them."""
    blank = SlotSampling.allocate(slots)
    for name, value in columns.items():
        old = getattr(blank, name)
        value = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=old.dtype)
        setattr(blank, name, value.expand(slots).clone() if value.dim() == 0 else value)
    return blank


def roots(count: int, start: int = 0, **flags: bool) -> Draws:
    """Lines without drafts at successive positions of slot 0."""
    zero = torch.zeros(count, dtype=torch.int64)
    history = torch.zeros(1, start + count, dtype=torch.int64)
    return Draws(zero, start + torch.arange(count), zero, zero - 1, history, count, **flags)


def chain(tokens: list[int], known: list[int], **flags: bool) -> Draws:
    """A root that is the last known token, and a chain of drafts below it."""
    count = len(tokens) + 1
    lines = torch.arange(count)
    own = torch.tensor([known[-1], *tokens])
    return Draws(lines * 0, len(known) + lines, own, lines - 1, torch.tensor([known + [0] * count]), count, **flags)


class Oracle:
    """One line, recomputed from its own history in float64."""

    def __init__(self, logits: Tensor, draws: Draws, params: SlotSampling, line: int) -> None:
        self.params, self.slot, self.position = params, int(draws.slots[line]), int(draws.positions[line])
        path: list[int] = []
        node = line
        while (parent := int(draws.parents[node])) >= 0:
            path.insert(0, int(draws.tokens[node]))
            node = parent
        known = draws.history[self.slot, : int(draws.positions[node])].tolist()
        self.raw = np.where(np.isnan(logits[line]), NEVER, logits[line].numpy().astype(np.float64))
        self.scores = self._processed(path, known + path)

    def _processed(self, path: list[int], text: list[int]) -> np.ndarray:
        p, s, size = self.params, self.slot, len(self.raw)
        scores = self.raw.copy()
        if p.bias is not None and p.biased[s]:
            scores += p.bias[s].double().numpy()
        counts = np.zeros(size, int) if p.counts is None else p.counts[s].numpy().astype(int).copy()
        for token in path:
            if 0 <= token < size:
                counts[token] += 1
        if p.penalized[s]:
            seen = (counts > 0) | (p.in_prompt[s].numpy() if p.in_prompt is not None else False)
            rate = float(p.repetition[s])
            scores = np.where(seen, np.where(scores > 0, scores / rate, scores * rate), scores)
            scores -= float(p.frequency[s]) * counts + float(p.presence[s]) * (counts > 0)
        barred = set(p.stops[s].tolist()) if self.position < int(p.min_length[s]) else set()
        for padded in p.bad_words[s].tolist():
            word = [t for t in padded if t != -1]
            if word and text[len(text) - len(word) + 1 :] == word[:-1] and len(text) >= len(word) - 1:
                barred.add(word[-1])
        scores[[t for t in barred if 0 <= t < size]] = NEVER
        return scores

    def survivors(self, slack: float) -> np.ndarray:
        """Tokens that the filters leave in; a positive slack lets near-ties in, a negative one keeps them out."""
        p, s = self.params, self.slot
        z = (self.scores - self.scores.max()) / float(p.temperature[s])
        kept = z > NEVER
        if p.min_p[s] > 0:
            kept &= z >= math.log(float(p.min_p[s])) - slack
        if p.top_k[s] > 0:
            kept &= z >= np.sort(z)[-min(int(p.top_k[s]), len(z))] - slack
        if p.top_p[s] < 1:
            weight = np.where(kept, np.exp(z), 0)
            order = np.argsort(-z)
            mass = np.cumsum(weight[order])
            last = np.searchsorted(mass, (float(p.top_p[s]) + slack) * mass[-1])
            kept &= z >= z[order[min(last, len(z) - 1)]] - slack
        return kept

    def law(self) -> np.ndarray:
        """The distribution of the token."""
        z = (self.scores - self.scores.max()) / float(self.params.temperature[self.slot])
        weight = np.where(self.survivors(1e-9), np.exp(z), 0)
        return weight / weight.sum()

    def check(self, token: int) -> None:
        """The token is the right one, or provably too close to it to tell."""
        p, s = self.params, self.slot
        if self.scores.max() == NEVER:
            allowed = np.ones(len(self.raw), bool)
            if p.bias is not None and p.biased[s]:
                allowed = p.bias[s].numpy() > NEVER
            assert token == (np.argmax(allowed) if allowed.any() else np.argmax(self.raw))
        elif p.temperature[s] == 0:
            assert self.scores[token] >= self.scores.max() - NEAR
        else:
            key = torch.tensor([int(p.seed[s])]), torch.tensor([self.position])
            v = noise.uniform(noise.words(*key, noise.TARGET, len(self.raw)))[0].double().numpy()
            race = (self.scores - self.scores.max()) / float(p.temperature[s]) - np.log(-np.log1p(-v))
            assert self.survivors(NEAR)[token]
            assert race[token] >= race[self.survivors(-NEAR)].max(initial=NEVER) - NEAR


def scenario(seed: int) -> tuple[Tensor, Draws, SlotSampling]:
    """Three requests with random trees, parameters and tables."""
    random = np.random.default_rng(seed)
    vocab, slots = int(random.choice([2, 5, 63, 64, 130, 300])), 3
    low = min(vocab, 4)  # few distinct tokens, so that histories, words and drafts meet

    def some(*shape: int) -> Tensor:
        return torch.from_numpy(random.integers(0, low, shape))

    def pick(options: list[float]) -> Tensor:
        return torch.from_numpy(random.choice(options, slots)).float()

    parents, owner = [], []
    for slot in range(slots):
        begin = len(parents)
        for node in range(int(random.integers(1, 9))):
            parents.append(begin + int(random.integers(node)) if node else -1)
            owner.append(slot)
    known = random.integers(1, 6, slots)
    history, tokens = some(slots, 8), some(len(parents))
    depth = [0] * len(parents)
    for i, parent in enumerate(parents):
        depth[i] = depth[parent] + 1 if parent >= 0 else 0
        if parent < 0:
            tokens[i] = history[owner[i], known[owner[i]] - 1]
    words = some(slots, 3, 3)
    for word in words.view(-1, 3):
        word[: random.integers(0, 4)] = -1
    bias = torch.from_numpy(random.normal(size=(slots, vocab))).float()
    bias[torch.from_numpy(random.random((slots, vocab)) < 0.3)] = NEVER
    params = sampling(
        slots, temperature=pick([0, 0.3, 1, 2]), top_k=pick([0, 1, 3, 40, 70, 1000]).long(),
        top_p=pick([1, 0.2, 0.9, 0.999]), min_p=pick([0, 0.05, 0.5, 1]), repetition=pick([0.7, 1, 1.3]),
        presence=pick([-1, 0, 1.5]), frequency=pick([-0.5, 0, 0.7]), penalized=pick([0, 1]).bool(),
        seed=torch.from_numpy(random.integers(-9, 9, slots)), min_length=torch.from_numpy(random.integers(0, 9, slots)),
        biased=pick([0, 1]).bool(), stops=some(slots, 2) - 1, bad_words=words,
    )  # fmt: skip
    if random.random() < 0.7:
        params.counts, params.in_prompt = some(slots, vocab).int(), some(slots, vocab) == 0
    if random.random() < 0.7:
        params.bias = bias
    positions = torch.from_numpy(known[owner]) + torch.tensor(depth)
    draws = Draws(torch.tensor(owner), positions, tokens, torch.tensor(parents), history, len(parents))
    logits = torch.from_numpy(random.normal(size=(len(parents), vocab)) * random.choice([0.1, 2, 6])).float()
    if random.random() < 0.2:
        logits = logits.round()  # ties
    return logits, draws, params
