"""A decoder divided among ranks: each has some heads, some lines of every matrix, some tokens of the vocabulary.

A line is a row of a matrix [out, in]; "rows" are the tokens of a forward pass. Matrices that read the whole residual
stream are divided by lines, and each rank continues with its own outputs. Those that write to the stream are divided
in two ways. On a CPU, and on a GPU with `exact`, ranks gather their inputs, multiply their own lines with all of them
and gather the results: each sum is then computed by one rank in the order of a single-rank run, and the bits are the
same. Otherwise a matrix is divided by columns and the ranks' partial sums are added up, which takes one exchange
instead of two and rounds in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from augury.model.errors import ModelError
from augury.model.layers import AnyLinear, Attention, GatedMLP, Layer, Linear, PackedLinear
from augury.model.target import LayerShape
from augury.parallel.shares import WORDS, fits, head_share, head_widths, share, sizes_that_fit, widths

if TYPE_CHECKING:
    from augury.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Split:
    """This process's part in a model that is divided among ranks."""

    ranks: Ranks
    gathers: bool  # results are gathered, with the bits of a single rank; otherwise they are added up
    field: str = "tensor_parallel_size"  # the setting that gives the number of ranks, for errors

    def lines(self, count: int) -> Tensor:
        """This rank's lines of a matrix that has `count` of them."""
        return torch.arange(*share(count, self.ranks.rank, self.ranks.size))

    def words(self, vocab: int) -> tuple[int, int]:
        """This rank's tokens of a vocabulary: first, and one past the last."""
        return share(vocab, self.ranks.rank, self.ranks.size, WORDS)


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention heads, as far as dividing them among ranks needs to know."""

    queries: int
    keys: int
    dim: int

    def check(self, size: int, field: str) -> None:
        """Refuse a number of ranks that cannot divide these heads."""
        if not fits(self.queries, self.keys, size):
            choices = ", ".join(map(str, sizes_that_fit(self.queries, self.keys)))
            raise ModelError(
                f"{field}={size} cannot divide {self.queries} attention heads with {self.keys} keys; write {choices}."
            )

    def lines(self, split: Split) -> Tensor:
        """This rank's lines of the stacked q, k and v."""
        mine = head_share(self.queries, self.keys, split.ranks.rank, split.ranks.size)
        begin = (0, self.queries, self.queries + self.keys)
        spans = (mine.queries, mine.keys, mine.keys)
        parts = [torch.arange(at + first, at + last) for at, (first, last) in zip(begin, spans, strict=True)]
        return (torch.cat(parts)[:, None] * self.dim + torch.arange(self.dim)).flatten()

    def shape(self, split: Split) -> LayerShape:
        """The cache shape of a token on this rank."""
        first, last = head_share(self.queries, self.keys, split.ranks.rank, split.ranks.size).keys
        return LayerShape(last - first, self.dim, self.dim)

    def widths(self, split: Split) -> list[int]:
        """The width of each rank's part of the attention's output."""
        return [count * self.dim for count in head_widths(self.queries, self.keys, split.ranks.size)]


@dataclass(slots=True)
class GatheredLines:
    """A matrix divided by lines: every rank has the whole input [R, in], and gets the whole output [R, out]."""

    own: Linear | PackedLinear
    split: Split
    widths: list[int]  # lines of each rank

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows [R, in]."""
        return self.split.ranks.gather(self.own(x), self.widths)


@dataclass(slots=True)
class Inward:
    """A matrix that writes to the residual stream, by lines: its input is divided among ranks, its output is whole."""

    own: Linear | PackedLinear
    split: Split
    inputs: list[int]  # columns of the input that each rank has
    outputs: list[int]  # lines of each rank

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to this rank's part [R, inputs[rank]] of the rows."""
        ranks = self.split.ranks
        return ranks.gather(self.own(ranks.gather(x, self.inputs)), self.outputs)


@dataclass(slots=True)
class Summed:
    """The same by columns: the ranks' partial sums are added up, then the bias."""

    own: Linear
    split: Split
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to this rank's part of the rows."""
        out = self.split.ranks.total(self.own(x))
        return out if self.bias is None else out + self.bias


@dataclass(slots=True)
class SplitWords:
    """This rank's tokens of the embeddings, or of the LM head's matrix."""

    own: Linear | PackedLinear
    split: Split
    vocab: int

    @property
    def span(self) -> tuple[int, int]:
        """This rank's tokens: first, and one past the last."""
        return self.split.words(self.vocab)

    def embed(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Embeddings of tokens: the rank that has a token gives its embedding, the others add zeros."""
        first, last = self.span
        mine = (tokens >= first) & (tokens < last)
        out = torch.zeros(len(tokens), self._width, dtype=dtype, device=tokens.device)
        if last > first:
            places = torch.where(mine, tokens - first, 0)
            lines = self.own.weight[places] if isinstance(self.own, Linear) else self.own.weight.lines(places)
            out = torch.where(mine[:, None], lines.to(dtype), out)
        return self.split.ranks.total(out)

    def whole(self, hidden: Tensor) -> Tensor:
        """Logits of the whole vocabulary, gathered from all ranks."""
        return self.split.ranks.gather(self.own(hidden), widths(self.vocab, self.split.ranks.size, WORDS))

    @property
    def _width(self) -> int:
        weight = self.own.weight
        return int(weight.shape[1]) if isinstance(weight, Tensor) else weight.width


def take_lines(linear: AnyLinear, lines: Tensor) -> Linear:
    """Some lines of a matrix that is not packed."""
    assert isinstance(linear, Linear)
    at = lines.to(linear.weight.device)
    return Linear(linear.ops, linear.weight[at].contiguous(), None if linear.bias is None else linear.bias[at])


def split_lines(linear: Linear, split: Split | None) -> AnyLinear:
    """A drafter's matrix divided by lines, or whole if the drafter is not divided."""
    if split is None:
        return linear
    count = len(linear.weight)
    return GatheredLines(take_lines(linear, split.lines(count)), split, widths(count, split.ranks.size))


def inward(linear: AnyLinear, split: Split, inputs: list[int]) -> AnyLinear:
    """A matrix that writes to the residual stream, divided from a whole one; `inputs` are the columns of each rank."""
    assert isinstance(linear, Linear)
    rank, size, count = split.ranks.rank, split.ranks.size, len(linear.weight)
    if split.gathers:
        return Inward(take_lines(linear, split.lines(count)), split, inputs, widths(count, size))
    first = sum(inputs[:rank])
    columns = linear.weight[:, first : first + inputs[rank]].contiguous()
    return Summed(Linear(linear.ops, columns), split, linear.bias)


def gate_lines(inner: int, split: Split) -> Tensor:
    """This rank's lines of the stacked gate and up matrices."""
    lines = split.lines(inner)
    return torch.cat([lines, lines + inner])


def split_layer(layer: Layer, heads: Heads, split: Split) -> Layer:
    """One rank's part of a layer that was read whole."""
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, GatedMLP) and isinstance(mlp.gate_up, Linear)
    inner = len(mlp.gate_up.weight) // 2
    return replace(
        layer,
        attention=split_attention(attention, heads, split),
        mlp=GatedMLP(
            mlp.ops,
            take_lines(mlp.gate_up, gate_lines(inner, split)),
            inward(mlp.down, split, widths(inner, split.ranks.size)),
        ),
    )


def split_attention(attention: Attention, heads: Heads, split: Split) -> Attention:
    """One rank's heads of an attention."""
    return replace(
        attention,
        qkv=take_lines(attention.qkv, heads.lines(split)),
        out=inward(attention.out, split, heads.widths(split)),
    )
