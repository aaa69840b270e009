"""MLP speculators straight from their formulas, in plain torch; state dictionaries carry the published names."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class ShiftedNorm(nn.Module):
    """w * x / rms(x) + b."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * rms(x) + self.bias


class Recurrent(nn.Module):
    """What both kinds share: the weight of a token beside the state, and running over known tokens or its own."""

    def __init__(self, n: int, inner: int, scaled: bool) -> None:
        super().__init__()
        self.n, self.scaled = n, scaled
        s = 0.5 ** (0.5 / n)
        self.ratio = math.sqrt((1 - s * s) * inner / 2) / s

    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def guess(self, i: int, state: tuple[Tensor, ...], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        raise NotImplementedError

    def read(self, hidden: Tensor) -> Tensor:
        return rms(hidden) / math.sqrt(2) if self.scaled else hidden

    def scores(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Logits [n, T, V] from hidden states [T, H] when the tokens fed back are `tokens` [n, T]."""
        state, lines = self.start(hidden), []
        for i in range(self.n):
            logits, state = self.guess(i, state, tokens[i])
            lines.append(logits)
        return torch.stack(lines)


class MLP(Recurrent):
    """`emb.i`, `proj.i`, `ln.i`, `head.i`."""

    def __init__(self, n: int, size: int, inner: int, vocabulary: int, tied: bool, scaled: bool) -> None:
        super().__init__(n, inner, scaled)
        emb = [nn.Embedding(vocabulary, inner) for _ in range(n)]
        proj = [nn.Linear(inner if i else size, inner, bias=False) for i in range(n)]
        ln = [ShiftedNorm(inner) for _ in range(n)]
        head = [nn.Linear(inner, vocabulary, bias=False) for _ in range(n)]
        if tied:
            emb, ln, head, proj = emb[:1] * n, ln[:1] * n, head[:1] * n, proj[:1] + proj[1:2] * (n - 1)
        self.emb, self.proj, self.ln, self.head = map(nn.ModuleList, (emb, proj, ln, head))

    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (self.read(hidden),)

    def guess(self, i: int, state: tuple[Tensor, ...], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = F.gelu(self.ln[i](self.proj[i](state[0]) + self.ratio * self.emb[i](tokens)))
        return self.head[i](x), (x,)


class LSTM(Recurrent):
    """`forget_emb.0`, `forget_proj.0` and `.1`, so for input, output, cell; `cell_ln.0`, `state_ln.0`, `head.i`."""

    GATES = ("forget", "input", "output", "cell")

    def __init__(self, n: int, size: int, inner: int, vocabulary: int, tied_emb: bool, scaled: bool) -> None:
        super().__init__(n, inner, scaled)
        self.inner = inner
        tables = [nn.ModuleList([nn.Embedding(vocabulary, inner)]) for _ in self.GATES]
        for i, gate in enumerate(self.GATES):
            setattr(self, f"{gate}_emb", tables[0 if tied_emb else i])
            first, later = nn.Linear(size, inner, bias=False), nn.Linear(inner, inner, bias=False)
            setattr(self, f"{gate}_proj", nn.ModuleList([first, later]))
        self.cell_ln, self.state_ln = nn.ModuleList([ShiftedNorm(inner)]), nn.ModuleList([ShiftedNorm(inner)])
        self.head = nn.ModuleList([nn.Linear(inner, vocabulary, bias=False)] * n)

    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.read(hidden), torch.zeros(len(hidden), self.inner)

    def guess(self, i: int, state: tuple[Tensor, ...], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        shown, memory = state
        f, u, o, c = (
            getattr(self, f"{g}_proj")[min(i, 1)](shown) + self.ratio * getattr(self, f"{g}_emb")[0](tokens)
            for g in self.GATES
        )
        memory = memory * f.sigmoid() + F.gelu(self.cell_ln[0](c)) * u.sigmoid()
        shown = F.gelu(self.state_ln[0](memory)) * o.sigmoid()
        return self.head[i](shown), (shown, memory)


def fused(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The LSTM's tensors with the four projections stacked, as ArcticInference keeps them."""
    kept = {name: t for name, t in state.items() if "_proj" not in name}
    for i in (0, 1):
        kept[f"projs.{i}.weight"] = torch.cat([state[f"{gate}_proj.{i}.weight"] for gate in LSTM.GATES])
    return kept
