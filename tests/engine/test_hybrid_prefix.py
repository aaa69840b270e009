"""The prefix cache of hybrid targets: a hit brings back blocks and state, and the text is that of a cold engine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hybrid_cases import save_hybrid
from hybrid_runs import SUFFIX_TREE, WIDE, Tokens, ask, engine, generated, know, random_prompts
from hypothesis import given
from hypothesis import strategies as st

from augury import LLM
from augury.config.sampling import SamplingParams
from augury.engine import state_room
from augury.engine.blocks import BlockPool
from augury.engine.prefix import extend_keys
from augury.engine.request import Request
from augury.engine.saved_states import SavedStates
from augury.engine.scheduled import schedule_request

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
A, B, C = random_prompts((43, 37, 34), seed=7)
NEW = 10
BLOCK = 8
Reference = Callable[[list[int]], list[int]]


@pytest.fixture(scope="module", params=["qwen3-next", "falcon-h1"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, Reference]:
    directory = tmp_path_factory.mktemp("prefix")
    model = save_hybrid(request.param, directory)
    known: dict[str, list[int]] = {}

    def reference(prompt: list[int]) -> list[int]:
        if str(prompt) not in known:
            [known[str(prompt)]] = generated(model, [prompt], NEW)
        return known[str(prompt)]

    return engine(directory, enable_prefix_caching=False), reference


def fresh(plain: LLM, drafts: str = "", **settings: object) -> LLM:
    spec = {"": None, "tree": SUFFIX_TREE, "wide": WIDE}[drafts]
    return engine(Path(plain.model_path), plain, speculative_config=spec, **settings)


def found(llm: LLM, prompt: list[int], want: list[int]) -> int:
    """Ask, hold the answer to what it should be, and say how many prompt tokens were in the cache."""
    before = llm.engine.stats.prefix_cache_hits
    assert ask(llm, [prompt], new=NEW) == [want]
    return llm.engine.stats.prefix_cache_hits - before


@pytest.mark.parametrize("drafts", ["", "tree"])
def test_a_b_a(plain: tuple[LLM, Reference], drafts: str) -> None:
    base, reference = plain
    llm = fresh(base, drafts)
    hits = [found(llm, prompt, reference(prompt)) for prompt in (A, B, A, C, B, A)]
    whole = [(len(prompt) - 1) // BLOCK * BLOCK for prompt in (A, B, A, C, B, A)]
    assert hits == [0, 0, whole[2], 0, *whole[4:]]


def test_a_conversation_goes_on(plain: tuple[LLM, Reference]) -> None:
    """The next turn finds the answer, too, with drafts up to the block in which the last of them were accepted."""
    base, reference = plain
    for drafts in ("", "wide"):
        llm = fresh(base, drafts)
        turns: Tokens = [C]
        for more in (A[:5], B[:9]):
            turns.append([*turns[-1], *reference(turns[-1]), *more])
        if drafts:
            know(llm, turns, [reference(turn) for turn in turns], branching=True)
        assert found(llm, turns[0], reference(turns[0])) == 0
        for before, turn in pairwise(turns):
            hits = found(llm, turn, reference(turn))
            behind = len(before) + len(reference(before)) - 1
            assert hits % BLOCK == 0 and hits <= behind
            assert hits == behind // BLOCK * BLOCK if not drafts else hits >= (len(before) - 1) // BLOCK * BLOCK


def test_where_two_prompts_part_a_state_is_saved(plain: tuple[LLM, Reference]) -> None:
    base, reference = plain
    llm = fresh(base)
    prompts = [A[:42] + tail for tail in (B[:20], C[:20], B[20:])]
    hits = [found(llm, prompt, reference(prompt)) for prompt in prompts]
    assert hits == [0, 0, 40]  # the second is the first to show where they part


def test_long_prompts_leave_states_on_their_way(plain: tuple[LLM, Reference], monkeypatch: pytest.MonkeyPatch) -> None:
    base, reference = plain
    monkeypatch.setattr(state_room, "CHUNK", 16)
    monkeypatch.setattr(state_room, "line_bytes", lambda shapes: 1)
    llm = fresh(base)
    assert found(llm, A + B[:10], reference(A + B[:10])) == 0
    assert found(llm, A[:41] + C[:9], reference(A[:41] + C[:9])) == 32


@pytest.mark.parametrize("lines", [0, 1, 2, 3])
def test_few_lines_cost_hits_and_nothing_else(
    plain: tuple[LLM, Reference], lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, reference = plain
    monkeypatch.setattr(state_room, "FEWEST", lines)
    monkeypatch.setattr(state_room, "KEPT", 0)
    llm = fresh(base, "tree")
    states = llm.engine.scheduler.states
    assert states is not None and states.num_lines == lines
    prompts = [A, B, A, C, A, A + C[:7], A]
    assert ask(llm, prompts, new=NEW) == [reference(prompt) for prompt in prompts]
    hits = [found(llm, prompt, reference(prompt)) for prompt in prompts[3:]]
    assert (sum(hits) > 0) == (lines > 0)


def test_what_is_forgotten_or_anothers_is_not_found(plain: tuple[LLM, Reference]) -> None:
    base, reference = plain
    llm = fresh(base)
    assert found(llm, A, reference(A)) == 0 < found(llm, A, reference(A))
    llm.reset_prefix_cache()
    assert found(llm, A, reference(A)) == 0
    before = llm.engine.stats.prefix_cache_hits
    assert ask(llm, [A], new=NEW, extra_args={"cache_salt": "somebody"}) == [reference(A)]
    assert llm.engine.stats.prefix_cache_hits == before


def request_of(tokens: list[int], number: int) -> Request:
    return Request(str(number), number, len(tokens), tokens, SamplingParams(), 0, frozenset(), 1000, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 9)), max_size=40), st.integers(0, 6))
def test_no_line_is_lost_or_owned_twice(steps: list[tuple[int, int, int]], lines: int) -> None:
    """Four slots; each step admits a request or moves one on by some tokens, until it ends."""
    pool = BlockPool(200)
    saved = SavedStates(pool, 4, range(10, 10 + lines), every=2)
    seats: dict[int, Request] = {}
    for number, (slot, length, speed) in enumerate(steps):
        request = seats.get(slot)
        if request is None:
            request = seats[slot] = request_of([number % 3] * length, number)
            extend_keys(request.keys, request.tokens, 4)
            usable = saved.usable(request, request.keys[: (length - 1) // 4])
            request.blocks = pool.share(usable)
            del request.keys[len(request.blocks) :]
            request.slot, request.computed = slot, 4 * len(request.blocks)
            request.sent = request.computed
            saved.admit(request)
            assert (saved.found(request) >= 10) == (len(request.blocks) > 0)
        new = min(max(1, request.pending), speed, saved.bound(request))
        slots, ends, chosen = saved.plan([schedule_request(request, new)])
        assert set(slots) <= {slot} and all(line == 0 or 10 <= line < 10 + lines for line in chosen)
        assert all(end > request.sent for end in ends)
        ran = request.sent + new
        request.tokens += [number % 3] * max(0, ran + 1 - request.length)
        request.computed = request.sent = ran
        more = pool.take(max(0, min(pool.num_free, ran // 4 - len(request.blocks))))
        request.blocks += more
        done = len(request.keys)
        extend_keys(request.keys, request.tokens[:ran], 4)
        for block, key in zip(request.blocks[done:], request.keys[done:], strict=False):
            pool.publish(block, key)
        saved.ran(request, ran)
        saved.check()
        if speed == 9 or request.length > 80:
            del seats[slot]
            pool.release(request.blocks)
            saved.leave(request)
            saved.check()
    assert saved.num_saved <= lines
