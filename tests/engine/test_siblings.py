"""The n answers to one prompt read it once, and say what each would say alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generating import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from queued import BLOCK, make_request, make_scheduler

from augury import LLM, SamplingParams
from augury.engine.request import Request
from augury.engine.scheduler import Scheduler

PROMPT = {"prompt_token_ids": [token % 90 + 3 for token in range(0, 700, 7)]}  # 100 tokens: six blocks and four more
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
MANY = 24


def make(toy_model: Path, **options: Any) -> LLM:
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 192, "max_num_seqs": 32, "seed": 3, **options})


def prompt_rows(llm: LLM, params: SamplingParams) -> tuple[int, list[list[int]]]:
    """Prompt tokens that passes ran for one request, and its answers."""
    rows, step = [], llm.engine.step

    def counted() -> Any:
        updates = step()
        rows.append(llm.engine.last.prompt_rows)
        return updates

    llm.engine.step = counted  # type: ignore[method-assign]
    try:
        output = llm.generate([PROMPT], params, use_tqdm=False)[0]
    finally:
        llm.engine.step = step  # type: ignore[method-assign]
    return sum(rows), [answer.token_ids for answer in output.outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False},
        {"speculative_config": NGRAM},
        {"max_num_batched_tokens": 48},
        {"max_num_seqs": 5},
        {"num_gpu_blocks_override": 60, "block_size": 4, "max_model_len": 160},  # preempts
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()) or "default",
)
def test_one_prompt_is_read_once(toy_model: Path, options: dict[str, Any]) -> None:
    llm = make(toy_model, **options)
    said = {"max_tokens": 24, "temperature": 1.0, "ignore_eos": True}
    read, answers = prompt_rows(llm, SamplingParams(n=MANY, seed=40, **said))
    if "num_gpu_blocks_override" in options:
        assert llm.engine.stats.preemptions > 0
    else:
        assert read == 100 + (MANY - 1) * 4  # admitted together they would read 384, or 2,400 in one large pass
    alone = make(toy_model, enable_prefix_caching=False)
    params = [SamplingParams(seed=40 + i, **said) for i in range(MANY)]
    want = [output.outputs[0].token_ids for output in alone.generate([PROMPT] * MANY, params, use_tqdm=False)]
    assert answers == want and len(set(map(tuple, answers))) == MANY
    assert not llm.engine.scheduler.siblings._families and llm.engine.scheduler.num_waiting == 0


def test_a_prompt_that_is_scored_is_read_once_too(toy_model: Path) -> None:
    llm = make(toy_model)
    params = SamplingParams(n=MANY, max_tokens=3, temperature=0, prompt_logprobs=3)
    assert prompt_rows(llm, params)[0] == 100 + (MANY - 1) * 4
    assert prompt_rows(llm, params)[0] == 100 + (MANY - 1) * 4  # it is scored again, and found by the others


def test_without_a_prefix_cache_nothing_is_kept_for_the_next_request(toy_model: Path) -> None:
    llm = make(toy_model, enable_prefix_caching=False)
    params = SamplingParams(n=2, max_tokens=3, temperature=0)
    assert [prompt_rows(llm, params)[0] for _ in range(2)] == [104, 104]


# --- without a model --------------------------------------------------------------------------------------------------


def family(first: int, n: int, prompt_len: int = 70, answer: int = 3) -> list[Request]:
    made = [make_request(first + i, [first * 1000 + t for t in range(prompt_len)], answer) for i in range(n)]
    for i, request in enumerate(made):
        request.params, request.prompt, request.index = SamplingParams(n=n), first, i
    return made


def run_pass(scheduler: Scheduler) -> list[Request]:
    """Plan, draw token 7 for everyone, commit; who took part."""
    scheduled = scheduler.plan()
    scheduler.launched(scheduled)
    for item in scheduled:
        kept = item.request.accept([7], 0) if item.active else 0
        scheduler.commit(item.request, item.start + item.num_new_tokens, 0, kept)
        if item.request.finish_reason:
            scheduler.finish(item.request)
    return [item.request for item in scheduled]


def test_the_others_wait_for_the_first_and_strangers_do_not() -> None:
    scheduler = make_scheduler(blocks=201, budget=200, chunk=40)
    one, two, three = family(1, 3)
    stranger = make_request(9, [5] * 10)
    for request in (one, two, three, stranger):
        scheduler.add(request)
    assert scheduler.num_waiting == 4
    assert run_pass(scheduler) == [one, stranger]  # 40 of 70 tokens
    assert scheduler.num_waiting == 2
    assert run_pass(scheduler) == [stranger, one] and one.length == 71  # decoding comes first
    assert set(run_pass(scheduler)) == {one, two, three, stranger}
    assert two.cached_tokens == three.cached_tokens == 70 // BLOCK * BLOCK


def test_when_the_one_that_reads_leaves_the_next_one_reads() -> None:
    scheduler = make_scheduler(blocks=201, budget=64)
    one, two, three = family(1, 3)
    for request in (one, two, three):
        scheduler.add(request)
    run_pass(scheduler)
    scheduler.finish(two)  # while it waits
    scheduler.finish(one)
    assert scheduler.num_waiting == 1 and run_pass(scheduler) == [three]


def test_a_prompt_that_was_found_makes_nobody_wait() -> None:
    scheduler = make_scheduler(blocks=201, budget=64)
    for request in family(1, 2):
        scheduler.add(request)
    while run_pass(scheduler):
        pass
    again = family(1, 2)
    for request in again:
        request.prompt = 50
        scheduler.add(request)
    assert run_pass(scheduler) == again


@pytest.mark.parametrize(("n", "prompt_len"), [(8, BLOCK), (2, 60), (8, 9)])
def test_nobody_waits_for_what_is_read_at_once(n: int, prompt_len: int) -> None:
    scheduler = make_scheduler(blocks=201, budget=1000)
    made = family(1, n, prompt_len)
    for request in made:
        scheduler.add(request)
    assert run_pass(scheduler) == made


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_everyone_ends_and_nothing_is_kept(data: st.DataObject) -> None:
    scheduler = make_scheduler(blocks=data.draw(st.integers(40, 80)), slots=3, budget=data.draw(st.integers(3, 90)))
    scheduler.sharing.prefix_caching = data.draw(st.booleans())
    alive: list[Request] = []
    for number in range(data.draw(st.integers(1, 4))):
        made = family(10 * number + 1, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 90)))
        for request in made:
            scheduler.add(request)
        alive += made
        for _ in range(data.draw(st.integers(0, 3))):
            run_pass(scheduler)
        for gone in data.draw(st.lists(st.sampled_from(alive), max_size=3, unique=True)):
            scheduler.finish(gone)
            gone.finish_reason = gone.finish_reason or "abort"
    for _ in range(600):
        run_pass(scheduler)
    assert all(request.finish_reason for request in alive)
    assert scheduler.num_waiting == 0 and not scheduler.siblings._families
    scheduler.pool.check()
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
