"""A Target must agree with transformers however its rows are fed."""

from __future__ import annotations

from typing import Any

import torch
from rows import Segment, give_cache, make_rows, scattered_tables
from torch import Tensor

from augury.model.target import Target

TREE = [-1, -1, 0, 0, 2, 1, 4, 4]  # two roots, branches, depth four
LENGTH = 21


def tokens(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Random tokens that are not the first few, which may be special."""
    return torch.randint(5, vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def reference(model: Any, ids: list[int]) -> tuple[Tensor, list[Tensor]]:
    """transformers' own logits [n, V] and residual streams, the last of them before the final norm."""
    layers = decoder_layers(model)
    streams: list[Tensor] = []
    hooks = [layers[0].register_forward_pre_hook(lambda _, args, kwargs: streams.append(args[0]), with_kwargs=True)]
    hooks += [layer.register_forward_hook(lambda _, args, out: streams.append(first(out))) for layer in layers]
    logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    return logits, [stream[0] for stream in streams]


@torch.no_grad()
def stepwise(model: Any, ids: list[int]) -> Tensor:
    """transformers' logits when it decodes token by token, for rotary scalings that look at the length."""
    cache, lines = None, []
    for token in ids:
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        lines.append(out.logits[0, 0].float())
    return torch.stack(lines)


def decoder_layers(model: Any) -> Any:
    decoder = model.get_decoder()
    decoder = model.model if decoder is model else decoder  # Llama 4 names itself
    return decoder.layers if hasattr(decoder, "layers") else decoder.h


def first(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def check_every_way(target: Target, model: Any, expected: Tensor, ids: list[int], atol: float) -> None:
    """One pass, chunks, token by token, two slots in turn, with padding: always the same logits."""

    def close(result: Tensor, wanted: Tensor) -> None:
        torch.testing.assert_close(result, wanted, atol=atol, rtol=1e-3)

    tables = scattered_tables(2)
    for size in (len(ids), 3, 1):
        give_cache(target, 2)
        parts = [
            target.forward(make_rows([Segment(0, i, ids[i : i + size])], tables, padding=size % 2)).logits
            for i in range(0, len(ids), size)
        ]
        close(torch.cat(parts), expected)
    give_cache(target, 2)
    ahead = 4  # slot 1 runs the same tokens some rows ahead of slot 0
    target.forward(make_rows([Segment(1, 0, ids[:ahead])], tables))
    for i in range(len(ids) - ahead):
        rows = make_rows([Segment(0, i, ids[i : i + 1]), Segment(1, i + ahead, ids[i + ahead : i + ahead + 1])], tables)
        close(target.forward(rows).logits, expected[[i, i + ahead]])


def check_tree(target: Target, model: Any, ids: list[int], atol: float, stepping: bool = False) -> None:
    """Every node of a draft tree scores what transformers gives for that node's own path."""
    tables = scattered_tables(2, seed=3)
    give_cache(target, 2)
    drafted = tokens(len(TREE), target.vocab_size, seed=9)
    target.forward(make_rows([Segment(1, 0, ids)], tables))
    company = Segment(0, 0, ids[:3])
    nodes = target.forward(make_rows([company, Segment(1, len(ids), drafted, TREE)], tables, padding=2)).logits[3:]
    for node in range(len(TREE)):
        path = [node]
        while TREE[path[0]] >= 0:
            path.insert(0, TREE[path[0]])
        whole = ids + [drafted[i] for i in path]
        wanted = stepwise(model, whole)[-1] if stepping else reference(model, whole)[0][-1]
        torch.testing.assert_close(nodes[node], wanted, atol=atol, rtol=1e-3)


def check_features(target: Target, streams: list[Tensor], ids: list[int], atol: float) -> None:
    """Residual streams in the order asked for, all rows, whatever logits are wanted."""
    give_cache(target, 1)
    rows = make_rows([Segment(0, 0, ids)], scattered_tables(1))
    rows.wanted = rows.wanted[-1:]
    layers = (len(streams) - 1, 0, 1)
    scores = target.forward(rows, features=layers)
    assert scores.logits.shape == (1, target.vocab_size)
    assert scores.logits.dtype == torch.float32
    for layer, feature in zip(layers, scores.features, strict=True):
        torch.testing.assert_close(feature, streams[layer], atol=atol, rtol=1e-3)
    assert target.forward(rows).features == ()


def check_target(target: Target, model: Any, atol: float = 1e-4) -> None:
    """All of it."""
    ids = tokens(LENGTH, target.vocab_size)
    expected, streams = reference(model, ids)
    assert target.num_layers == len(streams) - 1
    assert len(target.layer_shapes) == target.num_layers
    check_every_way(target, model, expected, ids, atol)
    check_tree(target, model, ids, atol)
    check_features(target, streams, ids, atol)
