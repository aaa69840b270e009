"""Blocks, prefixes and scheduling, without any model."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from queued import BLOCK, make_request, make_scheduler

from augury.config.sampling import SamplingParams
from augury.engine.prefix import extend_keys
from augury.engine.prompt_shares import SCORED_ROWS
from augury.engine.request import Request
from augury.engine.scheduler import Scheduler


def run_pass(scheduler: Scheduler) -> list:
    """Plan, pretend the target drew token 7 everywhere and accepted every draft, commit."""
    scheduled = scheduler.plan()
    scheduler.launched(scheduled)
    for item in scheduled:
        accepted = item.nodes if item.active else 0
        kept = item.request.accept([7] * (accepted + 1), accepted) if item.active else 0
        scheduler.commit(item.request, item.start + item.num_new_tokens, accepted, kept)
        if item.request.finish_reason:
            scheduler.finish(item.request)
    return scheduled


def test_a_prefix_is_found_again_block_by_block() -> None:
    scheduler = make_scheduler(budget=64)
    first = make_request(1, list(range(11)))
    scheduler.add(first)
    run_pass(scheduler)
    second = make_request(2, [*range(9), 99, 98, 97])
    scheduler.add(second)
    run_pass(scheduler)
    assert second.cached_tokens == 8  # two full blocks agree, the third differs
    assert second.blocks[:2] == first.blocks[:2] and second.blocks[2] != first.blocks[2]


def test_a_fully_cached_prompt_still_runs_its_last_token() -> None:
    scheduler = make_scheduler(budget=64)
    for arrival in (1, 2):
        scheduler.add(make_request(arrival, list(range(8))))
    scheduled = run_pass(scheduler)
    scheduler.finish(scheduled[0].request)
    scheduler.add(again := make_request(3, list(range(8))))
    scheduler.plan()
    assert again.cached_tokens == 4 and again.computed == 4  # the second block holds the last token, which must run


def test_decoding_goes_first_and_a_long_prompt_cannot_hold_up_a_short_one() -> None:
    scheduler = make_scheduler(blocks=101, budget=16)
    scheduler.add(decoding := make_request(1, [1, 2, 3]))
    run_pass(scheduler)
    scheduler.add(long := make_request(2, list(range(200))))
    scheduler.plan()
    scheduler.add(short := make_request(3, [5, 6, 7, 8]))
    scheduled = {s.request: s for s in scheduler.plan()}
    assert scheduled[decoding].num_new_tokens == 1
    assert scheduled[short].num_new_tokens == 4 and scheduled[short].active  # whole, in the very next pass
    assert scheduled[long].num_new_tokens >= 7  # and the long one still gets half of what is left


def test_chunks_have_a_limit() -> None:
    scheduler = make_scheduler(blocks=101, budget=64, chunk=7)
    scheduler.add(make_request(1, list(range(30))))
    assert [run_pass(scheduler)[0].num_new_tokens for _ in range(5)] == [7, 7, 7, 7, 2]


def test_out_of_blocks_the_newest_starts_over_and_all_finish() -> None:
    scheduler = make_scheduler(blocks=8, budget=32)
    requests = [make_request(i, [i] * 5, answer=14) for i in range(1, 4)]  # each needs five of the seven blocks
    for request in requests:
        scheduler.add(request)
    for _ in range(200):
        run_pass(scheduler)
    assert [r.finish_reason for r in requests] == ["length"] * 3
    assert scheduler.stats.preemptions > 0 and requests[0].preemptions == 0
    scheduler.pool.check()
    assert scheduler.pool.num_free == 7


def test_a_draft_is_cut_rather_than_costing_another_its_place() -> None:
    scheduler = make_scheduler(blocks=6, budget=32)
    scheduler.add(first := make_request(1, [1] * 4, answer=20))
    scheduler.add(second := make_request(2, [2] * 4, answer=20))
    run_pass(scheduler)  # each holds one block; three are left, and each needs one for its next token
    first.draft_nodes = second.draft_nodes = 20
    scheduled = scheduler.plan()
    assert [len(s.request.blocks) for s in scheduled] == [3, 2]
    assert [s.nodes for s in scheduled] == [12 - 5, 8 - 5]
    assert scheduler.stats.preemptions == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_traffic_never_leaks_a_block(data: st.DataObject) -> None:
    scheduler = make_scheduler(blocks=data.draw(st.integers(9, 20)), slots=3, budget=data.draw(st.integers(3, 20)))
    alive: list[Request] = []
    for arrival in range(1, data.draw(st.integers(2, 9))):
        prompt = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=14))
        alive.append(make_request(arrival, prompt, answer=data.draw(st.integers(1, 12))))
        scheduler.add(alive[-1])
        for _ in range(data.draw(st.integers(0, 3))):
            for item in run_pass(scheduler):
                room = item.request.max_len - item.request.length - 1
                item.request.draft_nodes = min(data.draw(st.integers(0, 4)), max(0, room))
            scheduler.pool.check()
        if data.draw(st.booleans()):
            scheduler.finish(victim := data.draw(st.sampled_from(alive)))
            victim.finish_reason = victim.finish_reason or "abort"
    for _ in range(400):
        run_pass(scheduler)
    assert all(r.finish_reason for r in alive)
    scheduler.pool.check()
    assert scheduler.pool.num_free == scheduler.pool.num_blocks


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_equal_names_mean_equal_prefixes(a: list[int], b: list[int]) -> None:
    keys: list[list[bytes]] = [[], []]
    extend_keys(keys[0], a, BLOCK)
    extend_keys(keys[1], b, BLOCK)
    for i, (x, y) in enumerate(zip(*keys, strict=False)):
        assert (x == y) == (a[: (i + 1) * BLOCK] == b[: (i + 1) * BLOCK])


def test_prompts_to_be_scored_share_the_rows_of_a_pass() -> None:
    """Each row is a line of logits that all others in the pass wait for."""
    scheduler = make_scheduler(blocks=401, budget=2048)
    asked = SamplingParams(prompt_logprobs=3)
    scored = [replace(make_request(arrival, list(range(300))), params=asked) for arrival in (1, 2)]
    for request in scored:
        scheduler.add(request)
    scheduler.add(plain := make_request(3, list(range(500, 800))))
    passes = [{item.request: item for item in run_pass(scheduler)} for _ in range(6)]
    assert passes[0][plain].num_new_tokens == 300  # nothing holds up a prompt that is only read
    rows = [sum(item.scored for item in one.values() if item.request in scored and item.start < 300) for one in passes]
    assert rows == [SCORED_ROWS] * 4 + [600 - 4 * SCORED_ROWS, 0]
    assert all(request.length > 300 for request in scored)
