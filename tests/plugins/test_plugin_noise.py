"""The noise of V1's drafted positions on a CPU: whatever is drafted, a seeded text is that of plain decoding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from augury.plugins.vllm.coupled_v1 import NOT_DRAWN, expanded, verify
from augury.plugins.vllm.noise_v1 import ByState

WIDTH, LENGTH, MOST = 11, 12, 3
Plain = Any  # logits, generators, top-k, top-p: tokens and processed logits


def by_seed(logits: torch.Tensor, generators: dict[int, Any], k: Any, p: Any) -> tuple[torch.Tensor, None]:
    """As vLLM 0.32 draws on a CPU: the generator gives a seed, the seed the row's noise."""
    tokens = []
    for row, line in enumerate(logits):
        given = torch.randint(0, 2**31, (1,), generator=generators.get(row), dtype=torch.long)
        noise = torch.empty(len(line)).exponential_(generator=torch.Generator().manual_seed(int(given)))
        tokens.append((line.softmax(-1) / noise).argmax())
    return torch.stack(tokens) if tokens else torch.empty(0, dtype=torch.long), None


def by_row(logits: torch.Tensor, generators: dict[int, Any], k: Any, p: Any) -> tuple[torch.Tensor, None]:
    """As others draw: the generator gives the whole row."""
    noise = torch.empty_like(logits)
    for row in range(len(logits)):
        noise[row].exponential_(generator=generators.get(row))
    return (logits.softmax(-1) / noise).argmax(-1), None


def logits_after(text: list[int]) -> torch.Tensor:
    """Logits that depend on the whole text, so that a wrong token shows in all that follow."""
    seed = hash(tuple(text)) % 2**31
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


def decoded(plain: Plain, seed: int) -> list[int]:
    """Token by token."""
    generator, text = torch.Generator().manual_seed(seed), [0]
    while len(text) < LENGTH:
        text.append(int(plain(logits_after(text)[None], {0: generator}, None, None)[0]))
    return text


def stepped(noise: ByState, plain: Plain, texts: list[list[int]], drafts: list[list[int]], generators: Any) -> None:
    """One step of a batch as vLLM's V1 takes it: the token after each draft is drawn first of all."""
    counts = [len(draft) for draft in drafts]
    noise.ahead(generators, counts, WIDTH)
    ends = torch.stack([logits_after(text + draft) for text, draft in zip(texts, drafts, strict=True)])
    bonus = plain(ends, generators, None, None)[0]
    rows = [
        logits_after(text + draft[:i]) for text, draft in zip(texts, drafts, strict=True) for i in range(len(draft))
    ]
    metadata = SimpleNamespace(generators=generators, all_greedy=False, temperature=torch.ones(len(texts)))
    drafted = torch.tensor([token for draft in drafts for token in draft], dtype=torch.int32)
    logits = torch.stack(rows) if rows else torch.empty(0, WIDTH)
    found = verify(noise, drafted, counts, MOST, logits, bonus.view(-1, 1).int(), metadata)
    for text, line in zip(texts, found.tolist(), strict=True):
        text.extend(token for token in line if token != NOT_DRAWN)


@pytest.mark.parametrize("plain", [by_seed, by_row])
@given(st.data())
def test_a_seeded_text_does_not_depend_on_drafts(plain: Plain, data: st.DataObject) -> None:
    seeds = [5, 6, 7]
    wanted = [decoded(plain, seed) for seed in seeds]
    generators = {i: torch.Generator().manual_seed(seed) for i, seed in enumerate(seeds)}
    texts: list[list[int]] = [[0] for _ in seeds]
    noise = ByState(plain)
    while min(map(len, texts)) < LENGTH:
        drafts = []
        for text, whole in zip(texts, wanted, strict=True):
            right = data.draw(st.integers(0, MOST))
            wrong = data.draw(st.lists(st.integers(0, WIDTH - 1), max_size=MOST - right))
            drafts.append((whole[len(text) : len(text) + right] + wrong)[:MOST])
        stepped(noise, plain, texts, drafts, generators)
    assert [text[:LENGTH] for text in texts] == wanted


def test_requests_without_a_seed_are_drawn_beside() -> None:
    generators = {1: torch.Generator().manual_seed(5)}
    texts = [[0], [0]]
    while len(texts[1]) < LENGTH:
        stepped(ByState(by_seed), by_seed, texts, [[1], [2, 3]], generators)
    assert texts[1][:LENGTH] == decoded(by_seed, 5)


def test_a_draw_of_another_kind_is_refused_at_the_start() -> None:
    def other(logits: torch.Tensor, generators: dict[int, Any], k: Any, p: Any) -> tuple[torch.Tensor, None]:
        return torch.rand(5, generator=generators[0]).argmax()[None], None

    with pytest.raises(ValueError, match="draws on a CPU in a way"):
        ByState(other)


def test_a_request_s_temperature_stands_in_each_of_its_rows() -> None:
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = expanded(torch.tensor([0.5, 0.7, 0.0]), ends, 5, replace_from=0, replace_to=1)
    assert found.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]
    kept = expanded(torch.tensor([3, 4, 0], dtype=torch.int32), ends, 5)
    assert kept.tolist() == [3, 3, 0, 0, 0] and kept.dtype == torch.int32
