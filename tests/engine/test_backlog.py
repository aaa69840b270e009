"""What a resting drafter has not read stays with the blocks: it is read by who finds them, and by nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_drafters import drafter
from torch import Tensor

from augury import LLM, SamplingParams
from augury.drafters.base import Drafter, DraftInput
from augury.engine import backlog as kept
from augury.engine.backlog import Backlog
from augury.engine.budget import FixedBudget
from augury.engine.request import Request
from augury.methods.registry import METHODS

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
KINDS = ("eagle3", "eagle", "draft_model", "dflash")
SIZE = 16  # tokens of a block
START = [65, 66, 67]


class AtFirst(FixedBudget):
    """Drafts for some passes, then never."""

    def __init__(self, nodes: int, passes: int) -> None:
        super().__init__(nodes)
        self.left = passes

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        self.left -= 1
        return [self.nodes if self.left >= 0 else 0] * len(requests)


def engine(toy_model: Path, kind: str, head: Path, rests: bool, **options: Any) -> LLM:
    method = next(card.name for card in METHODS.values() if kind in card.trained)
    spec = {"method": method, "model": str(head), "num_speculative_tokens": 3}
    sizes = {"device": "cpu", "max_model_len": 96, "max_num_seqs": 2, **options}
    llm = LLM(str(toy_model), speculative_config=spec, **sizes)
    if rests:
        llm.engine.runner.let_rest()
    return llm


def backlog_of(llm: LLM) -> Backlog:
    assert llm.engine.runner.backlog is not None
    return llm.engine.runner.backlog


def answer(llm: LLM, tokens: list[int], most: int, budget: FixedBudget) -> list[int]:
    llm.engine.budget = budget
    params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
    return list(llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)[0].outputs[0].token_ids)


def drafts_of(llm: LLM, tokens: list[int], most: int) -> tuple[list[int], list[list[int]]]:
    """An answer, and every draft that was made for it."""
    mine: Any = llm.engine.drafter
    propose, made = type(mine).propose, []

    def watched(inputs: Any) -> Any:
        draft = propose(mine, inputs)
        made.extend(line[:n] for line, n in zip(draft.tokens.tolist(), draft.count.tolist(), strict=True) if n)
        return draft

    mine.propose = watched
    try:
        return answer(llm, tokens, most, FixedBudget(3)), made
    finally:
        del mine.propose


def cache_of(llm: LLM, blocks: int) -> list[Tensor]:
    """What the drafter keeps for the first blocks of the last request."""
    assert llm.engine.drafter is not None
    at = llm.engine.state.block_tables[0, :blocks]
    whole = llm.engine.scheduler.pool.num_blocks + 1
    return [store.view(whole, -1)[at].clone() for store in llm.engine.drafter.stores]


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_request_is_no_work_for_a_drafter_that_rests(kind: str, toy_model: Path, tmp_path: Path) -> None:
    llm, calls = engine(toy_model, kind, drafter(toy_model, kind, 1, tmp_path), rests=True), []
    mine: Any = llm.engine.drafter
    propose = type(mine).propose
    mine.propose = lambda inputs: calls.append(int(inputs.num_new_tokens.sum())) or propose(mine, inputs)
    for _ in range(2):
        answer(llm, START, 40, FixedBudget(0))
    assert calls == [len(START)] * 2  # the prompts; a whole block of one could have been shared


@pytest.mark.parametrize("passes", [0, 2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_has_the_rows_of_one_that_never_rested(
    kind: str, passes: int, toy_model: Path, tmp_path: Path
) -> None:
    """Also where the rest begins within a block, and where a second turn has rested on the blocks of the first."""
    head, told = drafter(toy_model, kind, 1, tmp_path), []
    for rests in (False, True):
        llm = engine(toy_model, kind, head, rests)
        text = START + answer(llm, START, 40, AtFirst(3, passes))
        text += answer(llm, [*text, 70], 20, FixedBudget(0))
        if rests:
            assert backlog_of(llm)._unread
        text.insert(43, 70)
        said, drafts = drafts_of(llm, text, 8)
        told.append((said, drafts, cache_of(llm, len(text) // SIZE)))
    assert told[0][:2] == told[1][:2] and told[0][1]
    for mine, theirs in zip(told[0][2], told[1][2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_shared_with_one_that_still_rests(kind: str, toy_model: Path, tmp_path: Path) -> None:
    """A newcomer finds the text of a request that is under way, and reads what that one has put aside."""
    head, told = drafter(toy_model, kind, 1, tmp_path), []
    params = SamplingParams(temperature=0.0, max_tokens=70, ignore_eos=True)
    for rests in (False, True):
        llm, made = engine(toy_model, kind, head, rests), []
        llm.engine.budget = FixedBudget(0)
        (first,) = llm.intake.requests("a", START, params)
        llm.engine.add(first)
        while first.length < 45:
            llm.engine.step()
        (second,) = llm.intake.requests("b", [*first.tokens[:41], 70], params)
        llm.engine.add(second)
        llm.engine.budget = FixedBudget(3)
        while not (first.finish_reason and second.finish_reason):
            llm.engine.step()
            made.append((first.length, first.draft_nodes, second.length, second.draft_nodes))
        assert second.cached_tokens == 32
        told.append((first.tokens, second.tokens, made))
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", ["eagle3", "draft_model", "dflash"])
def test_it_goes_to_host_memory_and_back_with_its_block(kind: str, toy_model: Path, tmp_path: Path) -> None:
    head, told = drafter(toy_model, kind, 1, tmp_path), []
    for rests, room in ((False, {}), (True, {"num_gpu_blocks_override": 9, "kv_offloading_size": 0.01})):
        llm = engine(toy_model, kind, head, rests, **room)
        texts = [[start, *START, *answer(llm, [start, *START], 50, FixedBudget(0))] for start in (70, 80, 90)]
        told.append([drafts_of(llm, text, 8) for text in texts])
        if room:
            assert llm.engine.stats.external_prefix_cache_hits
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_what_was_dropped_changes_no_text(
    kind: str, toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(toy_model, kind, drafter(toy_model, kind, 1, tmp_path), rests=True)
    backlog = backlog_of(llm)
    text = START + answer(llm, START, 50, FixedBudget(0))
    most = backlog.bytes // 2
    monkeypatch.setattr(kept, "MOST_BYTES", most)
    more = START[:1] + answer(llm, START[:1], 60, FixedBudget(0))
    assert backlog.bytes <= most and bool(backlog.bytes) == (kind != "draft_model")  # which reads tokens alone
    plain = LLM(str(toy_model), device="cpu", max_model_len=96)
    for tokens in (text, more):
        assert drafts_of(llm, tokens, 20)[0] == answer(plain, tokens, 20, FixedBudget(0))


def test_preempted_requests_find_what_they_put_aside(toy_model: Path, tmp_path: Path) -> None:
    head = drafter(toy_model, "eagle3", 1, tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    prompts = [{"prompt_token_ids": [start, *START]} for start in (70, 80)]
    told = []
    for rests in (False, True):
        llm = engine(toy_model, "eagle3", head, rests, num_gpu_blocks_override=8)
        llm.engine.budget = FixedBudget(0)
        said = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
        assert llm.engine.stats.preemptions
        told.append((said, [drafts_of(llm, [start, *START, *s], 8) for start, s in zip((70, 80), said, strict=True)]))
    assert told[0] == told[1]


class Reader(Drafter):
    """Notes from where on it is told to read."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        self.told.append((slot, cached))


def one_pass(tables: Tensor, slot: int, start: int, count: int = 1) -> DraftInput:
    """A pass of one request; the features of a token are its place in the text."""
    none: Any = None
    one = [torch.tensor([n]) for n in (slot, start + count, 0, start, count)]
    features = (torch.arange(start, start + count, dtype=torch.float32)[:, None].expand(-1, 2),)
    return DraftInput(
        one[0], one[1], one[2], none, none, tables, 4, count, 64, one[2], one[3], one[4], one[2], none, False, features
    )


@pytest.fixture
def tables() -> Tensor:
    """Two requests on blocks of four tokens; they share the first two."""
    return torch.tensor([[1, 2, 3, 4], [1, 2, 5, 6], [0, 0, 0, 0]])


def rested(tables: Tensor, begin: int, end: int) -> Backlog:
    backlog = Backlog(2)
    backlog.admit(0, 1, "", "")
    for place in range(begin, end):
        backlog.put_aside(one_pass(tables, 0, place))
    backlog.forget(0)
    backlog.admit(1, 8, "", "")
    return backlog


@pytest.mark.parametrize(("begin", "told"), [(4, 4), (5, 0), (2, 0)])
def test_a_pass_begins_where_reading_ended(begin: int, told: int, tables: Tensor) -> None:
    """Within a block the first row is there already: a head is told of no prefix, whose end it would take for it."""
    backlog, reader = rested(tables, begin, 11), Reader()
    given = backlog.hand_over(one_pass(tables, 1, 8, 3), reader)
    assert (int(given.start), int(given.num_new_tokens)) == (begin, 11 - begin)
    assert given.features[0][:, 0].tolist() == list(range(begin, 11))
    assert reader.told == [(1, told)]
    assert list(backlog._unread) == [3]  # the block that is not shared
    assert backlog.hand_over(one_pass(tables, 1, 11), reader).features[0].tolist() == [[11, 11]]


def test_two_that_find_the_same_in_one_pass_both_read_it(tables: Tensor) -> None:
    backlog, one = rested(tables, 3, 8), one_pass(tables, 1, 8)
    both = replace(
        one,
        slots=torch.tensor([0, 1]),
        features=(torch.cat([one.features[0], one.features[0]]),),
        row_begin=torch.tensor([0, 1]),
        **{name: getattr(one, name).repeat(2) for name in ("lengths", "budget", "start", "num_new_tokens", "nodes")},
    )
    given = backlog.hand_over(both, Reader())
    assert given.features[0][:, 0].tolist() == [3, 4, 5, 6, 7, 8] * 2
    assert not backlog._unread and not backlog.bytes


@pytest.mark.parametrize("reads", [False, True])
def test_blocks_that_are_written_anew_drop_what_was_kept(reads: bool, tables: Tensor) -> None:
    backlog = rested(tables, 0, 12)
    tables[1] = torch.tensor([3, 1, 2, 6])
    for place in range(6):
        new = one_pass(tables, 1, place)
        backlog.hand_over(new, Reader()) if reads else backlog.put_aside(new)
    given = backlog.hand_over(one_pass(tables, 1, 6), Reader())
    assert given.features[0][:, 0].tolist() == ([6] if reads else [0, 1, 2, 3, 4, 5, 6])
    assert list(backlog._unread) == [2]


def test_a_pass_that_is_run_again_replaces_what_it_put_aside(tables: Tensor) -> None:
    backlog = rested(tables, 2, 8)
    tables[1] = tables[0]
    for place in (6, 7, 7, 8, 8):
        backlog.put_aside(one_pass(tables, 1, place))
    given = backlog.hand_over(one_pass(tables, 1, 8), Reader())
    assert given.features[0][:, 0].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert not backlog._unread


def test_the_oldest_go_first(tables: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 7 * 8)
    backlog = rested(tables, 0, 12)
    assert list(backlog._unread) == [3] and backlog.bytes == 4 * 8
    assert backlog.hand_over(one_pass(tables, 1, 8), Reader()).features[0].tolist() == [[8, 8]]


def test_copies_belong_to_what_they_are_copies_of(tables: Tensor) -> None:
    backlog = rested(tables, 0, 12)
    backlog.copy([1, 2, 6], [~0, ~1, 3])  # the last has nothing unread, and lies where a block had
    tables[0, :3] = torch.tensor([7, 8, 9])
    backlog.copy([~1], [9])
    assert sorted(backlog._unread) == [~1, ~0, 1, 2, 9]
    given = backlog.hand_over(one_pass(tables, 0, 12), Reader())
    assert given.features[0][:, 0].tolist() == [4, 5, 6, 7, 12]
